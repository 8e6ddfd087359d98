"""What keeps the compilation of a step short, read from its kernels."""

import ast

from test_house import MODULES, tree_of


def kernels_of(tree):
    """Functions that numba compiles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("njit" in ast.dump(each) for each in node.decorator_list):
            yield node


def test_kernels_of_the_model_assign_no_arrays_to_slices():
    """Such an assignment may have to put two shapes into words, for which numba compiles its strings: 4 s of 40."""
    found = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if module.startswith("ssmpi.model.")
        for kernel in kernels_of(tree_of(module))
        for node in ast.walk(kernel)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Subscript) and any(isinstance(part, ast.Slice) for part in ast.walk(target.slice))
    ]
    assert not found
