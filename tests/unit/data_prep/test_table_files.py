"""Files as other programs write them, which ``ssmpi-prepare table`` reads, or refuses by name."""

import pyarrow as pa
from test_prepare_table import prepare

from ssmpi.data.schema import read_manifest

PLAIN = 'label = "click"\n[categorical]\nuser = "integer"\n[split]\nby = "random"\n'


def rows_of(folder):
    return sum(split.rows for split in read_manifest(folder).splits.values())


def test_zstd_may_hold_more_text_than_the_sample_that_rows_are_estimated_from(tmp_path):
    text = b"click,user,note\n" + b"".join(b"%d,%d,%s\n" % (i % 2, i, b"x" * 1000) for i in range(1200))
    with pa.CompressedOutputStream(str(tmp_path / "a.csv.zst"), "zstd") as out:
        out.write(text)
    assert prepare(tmp_path, tmp_path / "a.csv.zst", PLAIN) == 0
    assert rows_of(tmp_path / "out") == 1200
