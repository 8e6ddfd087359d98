"""The recipes in ``jobs/packages`` ask for what ``pyproject.toml`` asks for, in the words of each packager."""

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "jobs/packages"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = dict(re.fullmatch(r"([\w-]+)(.*)", text).groups() for text in PROJECT["dependencies"])


def spack_range(text):
    """As Spack says it: ``>=0.62,<0.69`` is ``0.62:0.68``, both ends included."""
    low, _, high = text.removeprefix(">=").partition(",<")
    head, dot, last = high.rpartition(".")
    return f"{low}:{head}{dot}{int(last) - 1}" if high else f"{low}:"


def test_conda_has_the_ranges():
    text = (RECIPES / "conda/recipe.yaml").read_text()
    run = text.partition("\n  run:\n")[2].partition("\n\n")[0]
    asked = dict(re.findall(r"^    - ([\w-]+) (>=[\d.,<]+)$", run, flags=re.MULTILINE))
    assert {"torch" if name == "pytorch" else name: versions for name, versions in asked.items()} == RANGES
    assert f'version: "{PROJECT["version"]}"' in text
    scripts = re.findall(r"^      - (ssmpi\S* = \S+)$", text, flags=re.MULTILINE)
    assert scripts == [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]


def test_spack_has_the_ranges():
    text = (RECIPES / "spack/package.py").read_text()
    asked = dict(re.findall(r'^        depends_on\("py-([\w-]+)@([\d.:]+)"\)$', text, flags=re.MULTILINE))
    assert asked == {name: spack_range(versions) for name, versions in RANGES.items()}


def test_easybuild_has_versions_in_the_ranges():
    (path,) = (RECIPES / "easybuild").glob("*.eb")
    text = path.read_text()
    assert f"version = '{PROJECT['version']}'" in text
    assert path.name.startswith(f"ssmpi-{PROJECT['version']}-")
    named = {
        name.lower(): version for name, version in re.findall(r"^    \('([\w-]+)', '([\d.]+)'\)", text, re.MULTILINE)
    }
    named["torch"] = named.pop("pytorch")
    bundled = set(re.findall(r"[\w-]+", " ".join(re.findall(r"# ([\w, -]+)$", text, re.MULTILINE))))
    assert RANGES.keys() <= named.keys() | bundled
    assert [name for name in RANGES.keys() & named.keys() if named[name] not in SpecifierSet(RANGES[name])] == []


def test_the_citation_is_of_this_version():
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
