"""A run file and a site file make a batch file: what it asks for is what the ranks need, and nothing is made half."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datasets import CARDINALITIES

from ssmpi import cli
from ssmpi.cluster import site, submit
from ssmpi.cluster.node_layout import lay_out, layout_of
from ssmpi.config import load
from ssmpi.data.features import CRITEO
from ssmpi.data.schema import DatasetManifest, ShardEntry, Split, write_manifest
from ssmpi.runtime.errors import SettingsError, TopologyError
from ssmpi.runtime.files.run_files import unknown_entries
from ssmpi.runtime.settings import dump
from ssmpi.runtime.topology import Role, Topology

JOBS = Path(__file__).parents[3] / "jobs"
SITES = sorted(path.stem for path in (JOBS / "sites").glob("*.toml"))
TOPOLOGY = ("topology.trainers=4", "topology.threads=8", "topology.embedding_ps=3", "topology.sync_ps=2")


OWN_NETWORK = """
from ssmpi.model.network import Network, mlp

def network(inputs):
    return Network(tuple(mlp("top", "rows", [6, 1], last="none")), inputs)
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """A run file in the current folder, with the manifest of a prepared data set and a network of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    shard = ShardEntry("train/shard-00000.h5", 1_000_000, 250_000, 157_000_000, "")
    write_manifest(tmp_path / "data", DatasetManifest(CARDINALITIES, {"train": Split((shard,))}))
    Path("run.toml").write_text('[data]\nfolder = "data"\n[topology]\nsync_ps = 1\n[sync]\nalgorithm = "easgd"\n')
    Path("net.py").write_text(OWN_NETWORK)
    return Path("run.toml")


def command(*words):
    """Exit code of ``ssmpi WORDS``."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return ended.value.code


@pytest.mark.parametrize("name", SITES)
def test_dry_run(run_file, golden, capsys, name):
    assert command("submit", run_file, *TOPOLOGY, "--site", JOBS / "sites" / f"{name}.toml", "--dry-run") == 0
    found = capsys.readouterr().out
    assert found == golden(f"submit-{name}.txt", found)
    assert not Path("runs").exists()


NODE = site.settings.build(site.Site, {"node": {"cores": 8, "memory_gb": 16.0}})


def lay(topology, memory=None, spare=None, **sections):
    """A layout on nodes of 8 cores and 16 GB."""
    values = {"node": {"cores": 8, "memory_gb": 16.0}, "slurm": {}, **sections}
    sizes = dict.fromkeys(Role, 1e9) | (memory or {})
    return lay_out(topology, site.settings.build(site.Site, values), sizes, spare)


def test_memory_is_asked_for_copies_too_but_no_more_than_a_node_has():
    """A checkpoint's copy in the background would else be what ends the job; more than there is SLURM refuses."""
    packed, gib = {"servers": "packed"}, 2**30
    alone = Topology(1, 1, 1, 0)
    for need, spare, expected in ((4 * gib, 0, 5), (4 * gib, 3 * gib, 8), (4 * gib, 20 * gib, 14), (13 * gib, 0, 14)):
        layout = lay(alone, {Role.EMBEDDING_PS: need}, {Role.EMBEDDING_PS: spare}, placement=packed)
        assert layout.memory_gib(NODE) == expected
        assert ("no room for copies" in layout.describe(NODE)) == (need + spare > 16e9)


def test_every_rank_is_somewhere_and_no_node_is_idle_or_overfull():
    for trainers in range(1, 6):
        for embedding_ps in range(1, 20, 3):
            for servers in ("spread", "packed"):
                topology = Topology(trainers, 2, embedding_ps, 1)
                try:
                    layout = lay(topology, placement={"servers": servers})
                except TopologyError:
                    assert servers == "spread"
                    continue
                assert len(layout.nodes) == topology.size
                assert set(layout.nodes) == set(range(layout.count))
                for node in range(layout.count):
                    assert layout.need_of(node).cores <= 8
                    assert layout.need_of(node).cores <= layout.tasks_per_node * layout.cores_per_task
                    assert layout.need_of(node).bytes <= layout.memory_gib(NODE) * 2**30 <= 16e9


def test_packed_servers_never_share_a_node_with_a_trainer_and_fill_theirs():
    layout = lay(Topology(3, 4, 10, 2), placement={"servers": "packed"})
    assert layout.nodes == (0, 1, 2, *[3] * 8, *[4] * 4)


def test_packed_servers_are_parted_by_memory_too():
    layout = lay(Topology(1, 1, 4, 0), memory={Role.EMBEDDING_PS: 7e9}, placement={"servers": "packed"})
    assert layout.nodes == (0, 1, 1, 2, 2)


def test_spread_servers_go_round_the_trainers():
    layout = lay(Topology(4, 1, 3, 2), placement={"trainers_per_node": 2})
    assert layout.nodes == (0, 0, 1, 1, 0, 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("topology", "sections", "words"),
    [
        (Topology(1, 12, 1), {}, ("node 0 (trainer 0, embedding_ps 0) needs 14 cores", "have 8", "topology.threads")),
        (Topology(4, 1, 1), {"node": {"cores": 8, "memory_gb": 16, "count": 3}}, ("4 nodes needed", "the site has 3")),
        (Topology(1, 1, 20), {}, ("needs 21.0 GB", "have 16", "embedding_ps")),
    ],
)
def test_what_cannot_fit_is_refused_with_the_arithmetic(topology, sections, words):
    with pytest.raises(TopologyError) as refused:
        lay(topology, **sections)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"launcher": {"command": "srun"}}, "needs a [slurm] section"),
        ({"launcher": {"hosts": ["a", "b"]}, "slurm": {}}, "launcher.hosts is for sites without SLURM"),
        ({"node": {"cores": 0, "memory_gb": 1}}, "node.cores must be at least 1"),
        ({"placement": {"servers": "pakced"}}, "did you mean 'packed'?"),
        ({"launcher": {"hosts": ["a", "b"]}, "pbs": {}}, "launcher.hosts is for sites without PBS"),
        ({"slurm": {}, "pbs": {}}, "[slurm] and [pbs]: a site has one batch system: remove the others"),
        ({"pbx": {}}, "unknown section 'pbx'; did you mean 'pbs'?"),
        ({"sge": {}}, "unknown section 'sge'; there are node, placement, launcher, slurm, pbs, lsf, flux, setup"),
        ({"lsf": {"queue": "a\ntouch X"}}, "lsf.queue = 'a\\\\ntouch X' has a line break"),
        ({"slurm": {"options": ["constraint=avx"]}}, "is not an option of a batch file"),
        ({"slurm": {"options": ["--x\ntouch X"]}}, "slurm.options = '--x\\\\ntouch X' has a line break"),
        *(
            ({"slurm": {name: "a\ntouch X"}}, f"slurm.{name} = 'a\\\\ntouch X' has a line break")
            for name in ("time", "partition", "account")
        ),
        ({"launcher": {"hosts": ["", ""]}}, "launcher.hosts: '' is not the name or address of a host"),
        ({"launcher": {"hosts": ["a", "--tune"]}}, "launcher.hosts: '--tune' is not the name or address of a host"),
        ({"launcher": {"hosts": ["a", "b", "a"]}}, "launcher.hosts: 'a' is named twice"),
    ],
)
def test_a_site_that_cannot_be_is_refused(values, words):
    with pytest.raises(SettingsError, match=words.replace("[", r"\[").replace("?", r"\?")):
        site.settings.build(site.Site, {"node": {"cores": 8, "memory_gb": 16.0}, **values})


def test_sites_survive_their_own_dump(tmp_path):
    for name in SITES:
        where = site.load(JOBS / "sites" / f"{name}.toml")
        (tmp_path / "site.toml").write_text(dump(where))
        assert site.load(tmp_path / "site.toml") == where


def fake(folder, name, script):
    """A command that is found before others of its name."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("name", "tool", "words"),
    [
        ("openmpi", "sbatch", "runs/run/job.sbatch"),
        ("pbs", "qsub", "runs/run/job.pbs"),
        ("lsf", "bsub", ""),
        ("flux", "flux", "batch runs/run/job.flux"),
    ],
)
def test_submit_makes_the_folder_and_hands_the_batch_file_over(run_file, tmp_path, monkeypatch, name, tool, words):
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", tool, f'echo "$@" > {tmp_path}/submitted; cat > {tmp_path}/read')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert command("submit", run_file, *TOPOLOGY, "--site", JOBS / "sites" / f"{name}.toml") == 0
    assert Path("submitted").read_text() == f"{words}\n"
    (batch,) = Path("runs/run").glob("job.*")
    assert Path("read").read_text() == (batch.read_text() if tool == "bsub" else "")
    assert load(Path("runs/run/run.toml")) == load(run_file, TOPOLOGY)
    assert site.load(Path("runs/run/site.toml")) == site.load(JOBS / "sites" / f"{name}.toml")
    assert json.loads(Path("runs/run/versions.json").read_text())["torch"]
    subprocess.run(["bash", "-n", batch], check=True)
    assert not unknown_entries(Path("runs/run"))


@pytest.mark.parametrize("there", [None, "runs", "runs/run"])
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1", "(exit code 1): sbatch: error: invalid p"),
        ("exit 7", "(exit code 7): it does not say why. Correct the [slurm] section of "),
    ],
)
def test_a_job_refused_by_sbatch_can_be_submitted_again(run_file, tmp_path, monkeypatch, capsys, there, script, words):
    if there:
        Path(there).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "sbatch", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    before = sorted(tmp_path.rglob("*"))
    submit = ("submit", run_file, "model.name=net.py:network", "--site", JOBS / "sites" / "openmpi.toml")
    assert command(*submit) == 2
    assert f"error: sbatch rejected the job {words}" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    fake(tmp_path / "bin", "sbatch", "echo Submitted batch job 7; echo a remark >&2")
    assert command(*submit) == 0
    said = capsys.readouterr()
    assert said.out.endswith("+ sbatch runs/run/job.sbatch\nSubmitted batch job 7\n")
    assert said.err == "a remark\n"
    Path("net.py").unlink()
    assert load(Path("runs/run/run.toml")).over(CRITEO).network.widths["top.0"] == 6


SAVES = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit(85)
signal.signal(signal.SIGINT, save)  # also where SIGINT was ignored, which no shell can change
pathlib.Path("ready").touch()
time.sleep(60)
"""


def test_a_stop_without_slurm_reaches_the_job_alone(run_file, tmp_path):
    """Ctrl-C of a terminal goes to all its processes: none of them may kill the job that saves."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "saves.py").write_text(SAVES)
    fake(tmp_path / "bin", "ssmpi", f"exec {sys.executable} {tmp_path / 'saves.py'}")
    line = [sys.executable, "-m", "ssmpi", "submit", run_file, "--site", JOBS / "sites" / "workstation.toml"]
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    submitted = subprocess.Popen(
        line, env={**os.environ, "PATH": path}, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not Path("ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(submitted.pid, signal.SIGINT)
        assert submitted.wait(30) == 85
        assert Path("saved").exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(submitted.pid, signal.SIGKILL)
        submitted.wait()


def test_submit_refuses_a_folder_that_cannot_be_written(run_file, capsys):
    assert command("submit", run_file, "run.folder=run.toml/x", "--site", JOBS / "sites" / "openmpi.toml") == 2
    assert capsys.readouterr().err.startswith("error: run.toml/x: cannot be written (")


def test_submit_leaves_an_earlier_run_alone(run_file, tmp_path, capsys):
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/result.json").touch()
    assert command("submit", run_file, "--site", JOBS / "sites" / "openmpi.toml") == 2
    assert (
        capsys.readouterr().err == "error: runs/run: not empty; choose another run.folder\n"
    )  # nothing there to submit
    assert [path.name for path in Path("runs/run").iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("site_file", "there", "way"),
    [
        ("openmpi", ("run.toml", "job.sbatch"), "sbatch runs/run/job.sbatch"),
        ("workstation", ("run.toml", "job.sbatch"), "bash runs/run/job.sbatch"),
        ("workstation", ("run.toml",), "ssmpi launch --resume runs/run"),
    ],
)
def test_submit_names_the_way_to_resume_that_is_there(run_file, capsys, site_file, there, way):
    Path("runs/run").mkdir(parents=True)
    for name in there:
        (Path("runs/run") / name).touch()
    assert command("submit", run_file, "--site", JOBS / "sites" / f"{site_file}.toml") == 2
    assert f"choose another run.folder, or resume the run in it with '{way}'\n" in capsys.readouterr().err


def test_where_there_is_no_slurm_it_says_what_is_ready(run_file, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert command("submit", run_file, "--site", JOBS / "sites" / "openmpi.toml") == 2
    assert "no sbatch here: submit on a login node" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("launch",), ("plan",), ("submit", "--site", "site.toml")])
def test_settings_without_a_run_file_are_told_where_it_belongs(run_file, capsys, words):
    for setting in ("sync.algorithm=ma", "data.folder=data/clicks"):
        assert command(*words, setting, "run.seed=2") == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: no run file given: '{setting}' is a setting"), said


def test_a_site_file_that_is_not_there_is_called_one(run_file, capsys):
    assert command("launch", run_file, "--site", "nowhere.toml") == 2
    assert capsys.readouterr().err == "error: nowhere.toml: no such site file\n"


def test_names_that_are_no_text_are_refused(run_file, capsys):
    """As Python passes them on where the locale is ASCII: a run file in UTF-8 cannot hold them."""
    assert command("launch", run_file, "run.folder=r\udcc3\udcbcn") == 2
    assert "error: 'run.folder=r\\udcc3\\udcbcn': not UTF-8, as this locale has it" in capsys.readouterr().err


def test_launch_for_slurm_outside_a_job_is_refused(run_file, monkeypatch, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert command("launch", run_file, "--site", JOBS / "sites" / "openmpi.toml", "--dry-run") == 2
    assert "submit it with 'ssmpi submit', or launch without --site" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_every_rank_is_given_its_host(run_file, tmp_path, monkeypatch, capsys, name, launcher):
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "scontrol", "seq -f n%g 0 9")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-9]")
    where = (JOBS / "sites" / f"{name}.toml").read_text().replace('"srun"', f'"{launcher}"')
    Path("site.toml").write_text(where)
    assert command("launch", run_file, *TOPOLOGY, "--site", "site.toml", "--dry-run") == 0
    said = capsys.readouterr().err
    layout = layout_of(load(run_file, TOPOLOGY), site.load(Path("site.toml")))
    hosts = ",".join(f"n{node}" for node in layout.nodes)
    flag = "--nodelist=" if launcher == "srun" else "-hosts " if name == "mpich" else "--host "
    assert f"{flag}{hosts} " in said
    assert ("--mpi=pmi2" if name == "mpich" else "--mpi=pmix") in said or launcher == "mpirun"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "echo 'Unable to contact slurm controller' >&2; exit 1",
            "failed (exit code 1): Unable to contact slurm controller",
        ),
        (None, "scontrol: cannot be started (No such file or directory): put SLURM's commands on PATH"),
    ],
)
def test_a_slurm_that_does_not_name_its_nodes_is_said(run_file, tmp_path, monkeypatch, capsys, body, says):
    (tmp_path / "bin").mkdir()
    if body:
        fake(tmp_path / "bin", "scontrol", body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    assert command("launch", run_file, "--site", JOBS / "sites" / "openmpi.toml", "--dry-run") == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [("plan",), ("submit", "--site", JOBS / "sites" / "openmpi.toml")])
def test_a_split_that_is_not_there_is_refused_before_a_job_waits(run_file, capsys, words):
    name, *options = words
    assert command(name, run_file, *options, "evaluate.final=tset") == 2
    assert "evaluate.final = 'tset': " in capsys.readouterr().err
    assert not Path("runs").exists()


def test_too_few_nodes_are_refused(run_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "scontrol", "echo n0; echo n1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    assert command("launch", run_file, *TOPOLOGY, "--site", JOBS / "sites" / "mpich.toml", "--dry-run") == 2
    assert "laid out for 4 nodes, but there are 2 (n0 n1)" in capsys.readouterr().err


TERABYTE = ("plan", JOBS / "configs" / "terabyte-40m.toml", "--tables", JOBS / "configs" / "terabyte-40m.tables")


def test_plan_of_a_terabyte_model_on_nodes(golden, capsys):
    """188 M rows x 128 float32 and one float32 of optimizer state a row, 96.9 GB, over 8 PSs."""
    assert command(*TERABYTE, "--site", JOBS / "sites" / "openmpi.toml") == 0
    found = capsys.readouterr().out
    assert found == golden("plan-terabyte.txt", found)
    assert "187,767,399 rows x 128, 96.9 GB" in found


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("topology.embedding_ps=1",), "embedding_ps 0) needs 97.1 GB of memory, the site's nodes have 64"),
        (("topology.threads=40",), "needs 41 cores, the site's nodes have 36"),
    ],
)
def test_plan_refuses_what_no_node_can_hold(tmp_path, capsys, overrides, words):
    where = (JOBS / "sites" / "openmpi.toml").read_text().replace("memory_gb = 180", "memory_gb = 64")
    (tmp_path / "site.toml").write_text(where)
    assert command(*TERABYTE, *overrides, "--site", tmp_path / "site.toml") == 2
    assert words in capsys.readouterr().err


def test_plan_refuses_a_list_of_tables_that_is_none(tmp_path, capsys):
    (tmp_path / "tables").write_text("10 20 thirty\n")
    assert command("plan", TERABYTE[1], "--tables", tmp_path / "tables") == 2
    assert "expected whole numbers, the rows of each table; found thirty" in capsys.readouterr().err


def test_spare_hosts_are_asked_for_and_the_job_outlives_a_node(run_file, capsys):
    """As many more nodes; and what runs in the job may share nodes with a step that is still ending."""
    text = (JOBS / "sites" / "openmpi.toml").read_text()
    found = {}
    for spare in (0, 2):
        Path("site.toml").write_text(text.replace("[placement]", f"[placement]\nspare_hosts = {spare}"))
        assert command("submit", run_file, *TOPOLOGY, "--site", "site.toml", "--dry-run") == 0
        found[spare] = capsys.readouterr().out
    assert "#SBATCH --nodes=5\n" in found[0]
    assert "--no-kill" not in found[0]
    assert "#SBATCH --nodes=7\n#SBATCH --no-kill\n" in found[2]
    count = 6
    Path("site.toml").write_text(
        text.replace("[placement]", "[placement]\nspare_hosts = 2").replace("[node]", f"[node]\ncount = {count}")
    )
    assert command("submit", run_file, *TOPOLOGY, "--site", "site.toml", "--dry-run") == 2
    assert f"5 + 2 spare nodes needed (4 trainer + 3 embedding_ps + 2 sync_ps, 1 trainer a node, servers packed), the site has {count}" in capsys.readouterr().err  # fmt: skip  # noqa: E501


def test_submit_without_slurm_removes_its_session_folder(run_file, monkeypatch):
    done = []
    monkeypatch.setattr(submit, "remove_session", lambda: done.append("removed"))
    monkeypatch.setattr(os, "execvp", lambda *words: done.append(words[0]))
    assert command("submit", run_file, "--site", JOBS / "sites" / "workstation.toml") == 0
    assert done == ["removed", "bash"]


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("launch", "RUN"), ", which starts the ranks itself"),
        (("submit", "RUN", "--site", JOBS / "sites" / "workstation.toml"), ""),
        (("export", "runs"), ""),
        (("report", "runs"), ""),
        (("bench", "compression"), ""),
    ],
)
def test_a_command_for_one_process_is_refused_under_mpirun(run_file, monkeypatch, capsys, words, own):
    """Several would fight for a folder, leave memory behind, and write the same files."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert command(*(run_file if word == "RUN" else word for word in words)) == 2
    name = " ".join(words[: 2 if words[0] == "bench" else 1])
    assert f"'ssmpi {name}' runs in one process{own}, not in 4: start it without mpirun" in capsys.readouterr().err
    assert not Path("runs").exists()
