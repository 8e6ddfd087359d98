"""Helpers for the arguments of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # has no public name


def add(
    among: Commands, name: str, command: Callable[[argparse.Namespace], int], text: str, *, ranks: bool = False
) -> argparse.ArgumentParser:
    """A command ``among`` others; ``ranks`` if it may be started under mpirun, as several processes."""
    sub: argparse.ArgumentParser = among.add_parser(name, help=text, description=text, allow_abbrev=False)
    sub.set_defaults(command=command, parser=sub, ranks=ranks)
    return sub


def add_run_file(sub: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A run file and overrides."""
    text = "TOML file of what differs from the defaults"
    sub.add_argument("run_file", type=Path, nargs="?" if optional else None, help=text)
    add_overrides(sub, "settings that override the file")


def add_overrides(sub: argparse.ArgumentParser, text: str, *, run_file: bool = False) -> None:
    """Settings, all optional; with ``run_file`` the first word may be a run file."""
    words = f"{'[run.toml] ' * run_file}section.key=value"
    sub.add_argument("overrides", nargs="*", default=(), metavar=words, help=text)
