"""Nothing public escapes the table of tests, and solvers speak one language."""

import inspect
import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from registry import (
    APPROXIMATE,
    GRAPHS,
    INTERNAL_LOSSES,
    LOSSES,
    NOT_SOLVERS,
    OTHER_PROXES,
    PENALTIES,
    PROXES,
    SOLVERS,
    STRUCTURE,
)

import sparsejax as sj


def _defined(module, kind):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and kind(value) and value.__module__ == module.__name__
    }


def test_every_prox_is_registered():
    public = {n for n in _defined(sj.prox, inspect.isfunction) if not n.endswith("_columns")}
    assert public - OTHER_PROXES - {"tail_threshold"} == {p.name for p in PROXES}


def test_every_penalty_is_registered():
    assert _defined(sj.penalties, inspect.isclass) - STRUCTURE == set(PENALTIES)


def test_every_loss_is_registered():
    assert _defined(sj.losses, inspect.isclass) - INTERNAL_LOSSES - GRAPHS == set(LOSSES)


def test_every_solver_is_registered():
    functions = {name for name in sj.__all__ if inspect.isfunction(getattr(sj, name))}
    assert functions - NOT_SOLVERS == {*SOLVERS, *APPROXIMATE}


@pytest.mark.parametrize("name", [*SOLVERS, *APPROXIMATE])
def test_solvers_share_their_arguments(name):
    parameters = inspect.signature(getattr(sj, name)).parameters
    assert list(parameters)[:5] == ["problem", "init", "tol", "maxiter", "history"]
    for argument in ("tol", "maxiter", "history"):
        assert parameters[argument].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["tol"].default is None


@pytest.mark.parametrize("name", [n for n in sj.__all__ if callable(getattr(sj, n))])
def test_public_names_are_documented(name):
    assert len(inspect.getdoc(getattr(sj, name)) or "") > 40


def test_imported_from_the_installed_package():
    """The tests run against what a user installs, not against files that happen to lie beside them."""
    direct_url = metadata.distribution("sparsejax").read_text("direct_url.json") or ""
    if '"editable": true' in direct_url:
        expected = Path(__file__).parents[1]
    else:
        expected = Path(sysconfig.get_paths()["purelib"])
    assert Path(sj.__file__).parent.parent == expected.resolve()
    assert (Path(sj.__file__).parent / "py.typed").exists()
    assert metadata.version("sparsejax") == sj.__version__


def test_import_is_silent_and_leaves_jax_alone():
    code = (
        "import jax; before = dict(jax.config.values); import sparsejax, sys; "
        "assert dict(jax.config.values) == before; "
        "assert not {'jaxopt', 'sklearn', 'matplotlib', 'cvxpy', 'scipy.sparse.linalg'} & set(sys.modules) "
        "- set(sys.argv[1:])"
    )
    # What jax itself imports is not ours to answer for.
    jax_only = subprocess.run(
        [sys.executable, "-c", "import jax, optax, sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    allowed = [m for m in ("scipy.sparse.linalg",) if m in jax_only]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *allowed],
        capture_output=True, text=True, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
