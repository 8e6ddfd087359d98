"""All settings of run files and site files with their defaults and meanings, for the terminal and for a page."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator

from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.setting_docs import NO_VALUE, Section, sections
from ssmpi.runtime.settings import CLOSE

FILES = {"Run files": Config, "Site files": Site}
WIDTH = 96  # columns of a meaning


def describe(word: str | None = None) -> str:
    """The settings of the section ``word``, or else those whose name or meaning has it; without it, all. SettingsError
    if there are none.
    """
    if found := list(_chosen(word)):
        return "\n\n".join(map(_text, found))
    names = [name for section in _all() for name in (section.name, *(setting.name for setting in section.settings))]
    known = {part: None for name in names for part in (name, name.rpartition(".")[2], *re.split(r"[._]", name))}
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=CLOSE)
    hint = f"did you mean '{close[0]}'?" if close else "'ssmpi settings' lists all"
    raise SettingsError(f"no setting has '{word}' in its name or meaning; {hint}")


def markdown() -> str:
    """A table for each section."""
    lines = []
    for title, cls in FILES.items():
        lines += [f"## {title}", ""]
        for section in sections(cls):
            lines += [*([f"### `[{section.name}]`", ""] if section.name else []), _code(section.purpose), ""]
            lines += ["| setting | default | meaning |", "|---|---|---|"]
            lines += [f"| `{s.name}` | {_cell(s.default)} | {_code(s.meaning)} |" for s in section.settings]
            lines.append("")
    return "\n".join(lines).rstrip()


def _all() -> Iterator[Section]:
    for cls in FILES.values():
        yield from sections(cls)


def _chosen(word: str | None) -> Iterator[Section]:
    """The sections of that name and in it; or else all with those of their settings that have the word."""
    named = [section for section in _all() if word in (None, section.name) or section.name.startswith(f"{word}.")]
    if named:
        yield from named
        return
    for section in _all():
        fit = tuple(s for s in section.settings if str(word).lower() in f"{s.name} {s.meaning}".lower())
        if fit:
            yield Section(section.name, "", fit)


def _cell(default: str) -> str:
    return default if default in NO_VALUE else f"`{default}`"


def _text(section: Section) -> str:
    lines = [_code(section.purpose), ""] if section.purpose else []
    for setting in section.settings:
        value = f"({setting.default})" if setting.default in NO_VALUE else f"= {setting.default}"
        lines.append(f"{setting.name} {value}")
        lines.append(textwrap.indent(textwrap.fill(_code(setting.meaning), WIDTH), "    "))
    return "\n".join(lines)


def _code(text: str) -> str:
    """Code in single backticks, as Markdown has it."""
    return text.replace("``", "`")
