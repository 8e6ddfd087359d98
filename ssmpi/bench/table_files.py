"""Raw rows of Criteo as a table: CSV with a header, Parquet, and their schema for ``ssmpi-prepare table``.

``python -m ssmpi.bench.table_files TEXT CSV PARQUET`` writes both. As a process of its own, because a process
that has had much memory passes its peak on to those that it starts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ssmpi.data.features import CRITEO
from ssmpi.runtime.errors import UserError

LABEL = "label"
BLOCK_BYTES = 64 << 20  # of text; a row group each


def schema() -> str:
    """The schema of both files."""
    dense = [f'{name} = "log1p"' for name in CRITEO.dense]
    sparse = [f'{name} = "string"' for name in CRITEO.sparse]
    return "\n".join([f'label = "{LABEL}"', "[dense]", *dense, "[categorical]", *sparse, ""])


def write(text: Path, csv: Path, parquet: Path) -> None:
    """Write the rows of ``text``, with tabs between and labels, to ``csv`` and ``parquet``."""
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
        from pyarrow import parquet as arrow_parquet
    except ImportError as error:
        raise UserError("tables need pyarrow, which is not installed: pip install 'ssmpi[tables]'") from error
    names = [LABEL, *CRITEO.dense, *CRITEO.sparse]
    with text.open("rb") as rows, csv.open("wb") as out:
        out.write(",".join(names).encode() + b"\n")
        while block := rows.read(BLOCK_BYTES):
            out.write(block.replace(b"\t", b","))
    types = dict.fromkeys(names, pa.int64()) | dict.fromkeys(CRITEO.sparse, pa.string())
    read = arrow_csv.open_csv(
        csv,
        arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
        convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )
    with read, arrow_parquet.ParquetWriter(parquet, read.schema) as table:
        for batch in read:
            table.write_batch(batch)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
