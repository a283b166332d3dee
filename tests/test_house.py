"""The house keeps its rules: small rooms, arrows one way, nothing private across folders, nothing guessed."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import sparsejax as sj

PACKAGE = Path(sj.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"  # the package may be installed elsewhere, without them
FILES = sorted(PACKAGE.rglob("*.py"))
# From the ground up: a module imports from its own floor and from those before it.
FLOORS = [
    ("_core", "groups", "prox", "kernels", "graphs", "metrics"),
    ("losses", "penalties"),
    ("solution", "problem"),
    ("closures",),
    ("dual_point", "certificate", "predictions"),
    ("driver",),
    ("solvers", "compiling"),
    ("selection",),
    ("models",),
    ("interop", "sklearn", "plots"),
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# What asks an object of somebody else's: matrices of scipy and JAX, and the wrappers of plain pytrees.
MAY_PROBE = {
    "_core/checks.py",
    "losses/_graph.py",
    "losses/_function.py",
    "penalties/_plain.py",
    "models/multivariate/_data.py",
    "models/multivariate/_model.py",
}


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path):
    """The modules of this package that a file imports, as tuples of their names."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sparsejax":
            room = tuple(node.module.split(".")[1:])
            yield from [room] if room else [(alias.name,) for alias in node.names]


def body_length(function):
    """Lines of a function, without its docstring."""
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        length -= first.end_lineno - first.lineno + 1
    return length


def test_rooms_are_small():
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, name_of(path)
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert body_length(node) <= 60, f"{name_of(path)}: {node.name}"


def test_arrows_run_one_way():
    for path in FILES:
        own = path.relative_to(PACKAGE).with_suffix("").parts
        if own == ("__init__",):
            continue
        for room in imported(path):
            assert FLOOR_OF[room[0]] <= FLOOR_OF[own[0]], f"{name_of(path)} imports {room}"
            private = any(part.startswith("_") for part in room[1:])
            assert room[0] == own[0] or not private, f"{name_of(path)}: {room} is private to its folder"


def test_nothing_is_probed():
    """What a class can do is stated in its protocol: no hasattr, no getattr with a default."""
    for path in FILES:
        if name_of(path) in MAY_PROBE:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                probe = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)
                assert not probe, f"{name_of(path)}:{node.lineno}"


def test_no_two_files_have_one_name():
    names = [path.stem for path in FILES if path.stem not in ("__init__", "_base")]
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_there_are_no_circles():
    """Imports inside functions count; the names of an ``__init__`` are those of the files behind it."""
    modules = {tuple(path.relative_to(PACKAGE).with_suffix("").parts): path for path in FILES}
    arrows = {own: {room for room in imported(path) if room in modules} for own, path in modules.items()}
    order = TopologicalSorter(arrows)
    order.prepare()  # raises CycleError, which names the files


def test_no_module_has_the_name_of_a_public_function():
    functions = {name for name in sj.__all__ if callable(getattr(sj, name))}
    assert not functions & {path.stem for path in FILES}


@pytest.mark.parametrize("base", [sj.Penalty, sj.Loss])
def test_a_base_has_sixteen_names_and_its_page_describes_each(base):
    names = [name for name in dir(base) if not name.startswith("_")]
    assert len(names) <= 16
    fields = [*sj.losses.QuadraticModel._fields, *sj.losses.InUnits._fields] if base is sj.Loss else []
    page = (DOCS / f"adding-a-{base.__name__.lower()}.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert not [name for name in names + fields if f"`{name}" not in table]
