"""The shape of the code: nobody imports in circles, and nothing grows beyond what reads well."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LONGEST_FUNCTION, LONGEST_KERNEL, MOST_PARAMETERS = 50, 60, 6


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for name in ("ssmpi", "data_prep", "jobs/lab") for path in (ROOT / name).rglob("*.py")}


@cache
def tree_of(module):
    """Parsed where a test needs it: every worker of pytest imports this file, one runs it."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(tree):
    """Names of the project's modules that a file imports, for types and inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def circles(edges):
    """Pairs that reach each other."""
    reach = {}
    for start in edges:
        seen, todo = set(), list(edges[start])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += edges.get(at, ())
        reach[start] = seen
    return sorted({tuple(sorted((a, b))) for a in reach for b in reach[a] if a != b and a in reach.get(b, ())})


@pytest.fixture(scope="module")
def files():
    """The modules of this project that each of them imports."""
    return {module: set(imported(tree_of(module))) & MODULES.keys() - {module} for module in MODULES}


def test_no_files_import_each_other(files):
    assert circles(files) == []


def test_no_packages_import_each_other(files):
    edges = defaultdict(set)
    for module, names in files.items():
        package = ".".join(module.split(".")[:2])
        edges[package] |= {".".join(name.split(".")[:2]) for name in names} - {package, "ssmpi", "data_prep"}
    assert circles(edges) == []


def functions(tree):
    """Each function with whether numba compiles it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, any("njit" in ast.unparse(decorator) for decorator in node.decorator_list)


def parameters(function):
    found = function.args
    names = [a.arg for a in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_functions_are_short():
    found = [
        f"{module}.{function.name}"
        for module in MODULES
        for function, compiled in functions(tree_of(module))
        if function.end_lineno - function.lineno >= (LONGEST_KERNEL if compiled else LONGEST_FUNCTION)
        or (not compiled and parameters(function) > MOST_PARAMETERS)
    ]
    assert found == []


def required_fields(node):
    """Fields of a dataclass that a caller must give, by position or by name."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if not any(text.startswith("dataclass") and "kw_only=True" not in text for text in decorators):
        return []
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is None]
    return [ast.unparse(each.target) for each in fields if "ClassVar" not in ast.unparse(each.annotation)]


def test_no_constructor_takes_many_values_by_position():
    found = [
        f"{module}.{node.name}"
        for module in MODULES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ClassDef) and len(required_fields(node)) > MOST_PARAMETERS
    ]
    assert found == []


def test_no_merge_left_a_conflict():
    """In a docstring or a page no linter sees it."""
    kinds, roots = {".py", ".md", ".toml", ".sh", ".sbatch"}, ("ssmpi", "data_prep", "jobs", "tests", ".")
    paths = {p for root in roots for p in (ROOT / root).glob("*" if root == "." else "**/*") if p.suffix in kinds}
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [str(path) for path in paths if marker.search(path.read_text(encoding="utf-8"))] == []


def test_the_story_stays_a_page():
    assert len(MODULES["ssmpi.train"].read_text(encoding="utf-8").splitlines()) <= 80
