"""Compiled code on disk is that of the sources that there are, whatever of them has changed."""

import ast
import functools
import importlib
import os
import stat
import sys
import tempfile
from pathlib import Path

import numba
import pytest

from ssmpi.runtime.compiled import jit

PROJECT = Path(jit.ROOT)
CALLER = """
from ssmpi.runtime.compiled.jit import njit
from kernels.called import called
from kernels import (  # the second is a module
    plus,
    constants,
)
FACTOR = constants.FACTOR

@njit(cache=True)
def kernel(pair):
    return FACTOR * called(pair) + plus
"""
CALLED = """
from ssmpi.runtime.compiled.jit import njit

@njit(cache=True)
def called(pair):
    from kernels import unrelated
    return pair.first + 1
""".replace("    from kernels import unrelated\n", "")
PAIRS = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    first: int\n    second: int\n"
SOURCES = {"__init__": "plus = 1000", "caller": CALLER, "called": CALLED, "constants": "FACTOR = 1", "pairs": PAIRS}


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """``kernels(file=text, ...)``: writes files of a package and imports it as the next process does."""
    monkeypatch.setattr(jit, "ROOT", str(tmp_path))
    monkeypatch.setattr(jit, "PACKAGES", ("kernels",))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which Python holds to be right for a second
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kernels").mkdir()

    def forget():
        for cached in (jit.sources_checksum, jit._source, jit._file):
            cached.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def process(**files):
        for name, text in files.items():
            (tmp_path / "kernels" / f"{name}.py").write_text(text)
        forget()
        return importlib.import_module("kernels.caller").kernel, importlib.import_module("kernels.pairs").Pair(2, 8)

    yield process
    forget()


def call(kernel, pair):
    """The result, and whether the code for it was compiled in this process."""
    return kernel(pair), bool(kernel.stats.cache_misses)


def test_a_kernel_is_compiled_once_for_all_constants():
    @jit.njit()
    def called(number, pair, flag):
        return number + pair[0] if flag else pair[1]

    @jit.njit()
    def kernel(number):
        return called(1, (2, number), True), called(number, (4, 5), False), called(7, (number, 9), flag=True)

    assert kernel(6) == (3, 5, 13)
    assert len(called.overloads) == 1


def test_what_a_kernel_calls_and_reads_is_that_of_now(kernels, tmp_path):
    assert call(*kernels(**SOURCES)) == (1003, True)
    assert call(*kernels()) == (1003, False)
    assert call(*kernels(unrelated="")) == (1003, False)
    assert call(*kernels(called=CALLED.replace("+ 1", "+ 3"))) == (1005, True)
    assert call(*kernels(constants="FACTOR = 5")) == (1025, True)
    assert call(*kernels(__init__="plus = 2000")) == (2025, True)
    assert call(*kernels()) == (2025, False)
    left = [path.name for path in tmp_path.rglob("*.nb[ic]")]
    assert len(left) == 4, "an index and code for each of the two, and nothing of earlier sources"


def test_code_for_classes_that_are_gone_is_no_error(kernels):
    """Numba's list of what is on disk refers to the classes of arguments."""
    first = {"__init__": "plus = 1000", "caller": CALLER, "called": CALLED, "constants": "FACTOR = 1"}
    called = f"from kernels import pairs\n{CALLED}"
    assert call(*kernels(**{**first, "called": called, "pairs": PAIRS})) == (1003, True)
    renamed = PAIRS.replace("class Pair(", "class Two(") + "def Pair(*both): return Two(*both)\n"
    assert call(*kernels(pairs=renamed)) == (1003, True)


def imports(path):
    """The files of the project that a file's first level imports, by Python's own parser."""
    found = set()

    def add(name):
        place = PROJECT.joinpath(*name.split("."))
        found.update(file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())

    def look(statements):
        for each in statements:
            if isinstance(each, ast.If | ast.Try):
                look(each.body)
            elif isinstance(each, ast.Import):
                [add(alias.name) for alias in each.names]
            elif isinstance(each, ast.ImportFrom) and not each.level:
                add(each.module)
                [add(f"{each.module}.{alias.name}") for alias in each.names]

    look(ast.parse(path.read_text()).body)
    return found


@pytest.mark.parametrize("package", jit.PACKAGES)
def test_all_imports_are_found(package):
    files = sorted((PROJECT / package).rglob("*.py"))
    assert len(files) > 30
    for file in files:
        assert imports(file) <= set(map(Path, jit._source(str(file))[1])), file


@pytest.fixture
def without_home(tmp_path, monkeypatch):
    """Neither beside the sources nor in the home a folder can be made, for root either; that for temporary files."""
    (tmp_path / "kernels/__pycache__").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kernels/__pycache__/none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for said in (jit.private_folder, jit.say_uncached):
        said.cache_clear()
        monkeypatch.setattr(jit, said.__name__, functools.cache(said.__wrapped__))
    return tmp_path / f"ssmpi-kernels-{os.geteuid()}"


def test_without_a_writable_home_code_is_kept_in_a_folder_of_the_users_own(kernels, without_home, capsys):
    """As with docker's --user: nearly every command ended in a traceback."""
    assert call(*kernels(**SOURCES)) == (1003, True)
    assert call(*kernels()) == (1003, False)
    assert stat.S_IMODE(without_home.stat().st_mode) == 0o700
    said = capsys.readouterr().err
    assert said.count(f"compiled kernels are kept in {without_home}, because") == said.count("\n") == 1


def test_a_folder_that_others_can_write_to_is_not_used(kernels, without_home, capsys):
    without_home.mkdir()
    without_home.chmod(0o777)
    assert call(*kernels(**SOURCES)) == (1003, True)
    assert call(*kernels()) == (1003, True)
    assert not list(without_home.iterdir())
    said = capsys.readouterr().err
    assert said.count(f"compiles its kernels anew ({without_home} is not") == said.count("\n") == 1


@pytest.mark.parametrize("chosen", [True, False], ids=["NUMBA_CACHE_DIR", "beside the sources"])
def test_code_that_can_only_be_read_is_used(kernels, tmp_path, monkeypatch, chosen):
    """A site compiles once, for all its users."""
    if chosen:
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "site"))
    assert call(*kernels(**SOURCES)) == (1003, True)
    there = set(tmp_path.rglob("*.nb[ic]"))
    monkeypatch.setattr(jit._FileNames, "_locator_classes", [jit._Folder])  # no other folder can be written
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(jit, "private_folder", functools.cache(jit.private_folder.__wrapped__))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert call(*kernels()) == (1003, False)
    assert set(tmp_path.rglob("*.nb[ic]")) == there
