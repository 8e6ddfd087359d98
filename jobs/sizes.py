"""``python jobs/sizes.py``: lines and files of Python by part of this repository, and how they differ from the commit
before; ``jobs/test.sh`` prints it. Without git, or in a shallow clone, there are no differences.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {  # by the folder that a file is in; the first that fits
    "ssmpi/bench/": "bench", "ssmpi/": "product", "jobs/lab/": "lab", "data_prep/": "data_prep", "tests/": "tests"
}  # fmt: skip


def git(*words: str) -> str:
    """What git says; empty if it cannot."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout


def part_of(path: str) -> str:
    """The part that a file belongs to; empty if it is in none."""
    return next((part for folder, part in PARTS.items() if path.startswith(folder)), "") * path.endswith(".py")


def main() -> None:
    """Print the table."""
    lines, files, more = (dict.fromkeys(PARTS.values(), 0) for _ in range(3))
    for path in (path for folder in ("ssmpi", "data_prep", "jobs", "tests") for path in (ROOT / folder).rglob("*.py")):
        if part := part_of(path.relative_to(ROOT).as_posix()):
            lines[part] += path.read_text(encoding="utf-8").count("\n")
            files[part] += 1
    changes = git("diff", "--numstat", "--no-renames", "HEAD~1", "--", "*.py")
    for added, removed, path in (line.split("\t") for line in changes.splitlines()):
        if part := part_of(path):
            more[part] += int(added) - int(removed)
    print(f"{'':12}{'lines':>8}{'files':>7}" + "  since the commit before" * bool(changes))
    for part, count in lines.items():
        print(f"{part:12}{count:8,}{files[part]:7,}" + f"{more[part]:+10,}" * bool(changes))


if __name__ == "__main__":
    main()
