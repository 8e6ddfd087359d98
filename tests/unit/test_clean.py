"""What nobody uses any more is removed from memory, and nothing else."""

import os

from ssmpi.comm.memory_file import MemoryFile, Origin
from ssmpi.core import memory_folder
from ssmpi.tools.clean import clean


def test_only_what_no_process_uses_is_removed(tmp_path, capsys):
    folders = {name: memory_folder.of_launch(str(tmp_path), name) for name in ("left", "used", "starting")}
    other = tmp_path / f"ssmpi-{os.geteuid() + 1}-other"
    for folder in (folders["left"], folders["starting"], other):
        folder.mkdir()
        (folder / "trainer-0").write_bytes(b"left")
    used = MemoryFile(folders["used"] / "trainer-0", Origin("used", "trainer 0", 1))
    begun = []

    def start(seconds):
        """The next start of a job maps its memory meanwhile."""
        begun.append(MemoryFile(folders["starting"] / "embedding_ps-0", Origin("starting", "embedding_ps 0", 2)))

    assert clean(tmp_path, start) == 0
    assert {path.name for path in tmp_path.iterdir()} == {folders["used"].name, folders["starting"].name, other.name}
    assert f"removed: {folders['left']}" in capsys.readouterr().out
    assert used.path.exists()
    clean(tmp_path, lambda seconds: None)
    assert "nothing in" in capsys.readouterr().out
