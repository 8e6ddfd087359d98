"""The command line: parse and call. ``ssmpi`` and ``python -m ssmpi`` are the same."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence

from ssmpi.cli.arguments import parser
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host import launcher_env
from ssmpi.runtime.host.mpi_environment import home, remove_binding
from ssmpi.runtime.host.startup import print_any_text
from ssmpi.runtime.mpi import failure


def main(arguments: Sequence[str] | None = None, top: argparse.ArgumentParser | None = None) -> None:
    """Run one command, of ``ssmpi`` or of another parser ``top``, and exit with its code: 0 done, 1 failed, 2 an error
    that the user can fix, 85 stopped on request, 86 a rank or a host was lost.
    """
    print_any_text()
    os.environ |= home()
    parsed, bound = parse(top or parser(), arguments), remove_binding()
    if bound and (parsed.ranks or parsed.parser.prog == "ssmpi launch") and not launcher_env.rank():
        failure.say(bound)
    try:
        check_ranks(parsed)
        code = parsed.command(parsed)
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = failure.report_fatal_error(error)
    sys.exit(code)


def check_ranks(parsed: argparse.Namespace) -> None:
    """Raise UserError if a launcher has started several processes of a command for one: they would write the same
    files, fight for the same folder and leave memory behind.
    """
    found = launcher_env.ranks() or 1
    if found > 1 and not parsed.ranks:
        own = ", which starts the ranks itself" if parsed.parser.prog == "ssmpi launch" else ""
        raise UserError(
            f"'{parsed.parser.prog}' runs in one process{own}, not in {found}: start it without mpirun or srun."
            f" {launcher_env.another_jobs()}"
        )


def parse(top: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse, with overrides before or after options; under a launcher the first rank says what is wrong, and the others
    only if they have not been ended by then.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said) if launcher_env.rank() else contextlib.nullcontext():
            return parse_overrides(top, arguments)
    except SystemExit:
        failure.defer_to_rank_0()
        sys.stderr.write(said.getvalue())
        raise


def did_you_mean(parser: argparse.ArgumentParser, stray: Sequence[str]) -> str:
    """A hint with the option closest to a misspelt one; empty if none is close."""
    options = set(re.findall(r"(?<!\S)\[?(--[a-z-]+)", parser.format_usage()))
    found = (difflib.get_close_matches(word.partition("=")[0], options, n=1) for word in stray if word[:2] == "--")
    return next((f"; did you mean '{close[0]}'?" for close in found if close), "")


def parse_overrides(top: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse accepts positional arguments only in one group: collect the overrides that it leaves over."""
    for word in sys.argv[1:] if arguments is None else arguments:
        if not word.isascii() and word.encode(errors="ignore") != word.encode(errors="surrogatepass"):
            top.error(f"{word!a}: not UTF-8, as this locale has it; set PYTHONUTF8=1 and use names in UTF-8")
    parsed, rest = top.parse_known_args(arguments)
    stray = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    if stray:
        parsed.parser.error(f"unrecognized arguments: {' '.join(stray)}{did_you_mean(parsed.parser, stray)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed
