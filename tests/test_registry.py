"""Nothing public escapes the table of tests, and solvers speak one language."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import (
    APPROXIMATE,
    EVERYTHING,
    NOT_SOLVERS,
    OF_ONE_COLUMN,
    OTHER_PROXES,
    PROXES,
    SOLVERS,
    engines_of,
    solvers_of,
)
from loss_cases import INTERNAL_LOSSES, LOSS_BASES, LOSS_TOOLS, LOSSES, ONE_COLUMN, SUMS
from penalty_cases import PENALTIES, PENALTY_BASES, STRUCTURE

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.solvers import SOLVERS as TABLE
from sparsejax.solvers import chosen_chain

PAGE = Path(__file__).parents[1] / "docs" / "choose-a-solver.md"


def test_every_prox_is_in_the_table():
    assert set(sj.prox.__all__) - OTHER_PROXES == {p.name for p in PROXES}


def test_every_penalty_is_in_the_table():
    assert set(sj.penalties.__all__) - STRUCTURE - PENALTY_BASES == set(PENALTIES)


def test_every_loss_is_in_the_table():
    known = {*LOSSES, *SUMS, *ONE_COLUMN}
    assert set(sj.losses.__all__) - INTERNAL_LOSSES - LOSS_BASES - LOSS_TOOLS == known


def test_every_solver_is_in_the_table():
    functions = {name for name in sj.__all__ if inspect.isfunction(getattr(sj, name))}
    assert functions - NOT_SOLVERS == set(SOLVERS)
    assert all(getattr(sj, name) is solver.function for name, solver in SOLVERS.items())


def test_the_page_of_solvers_lists_them():
    """Its table has `solve` and then every solver, with the summary of the table."""
    rows = re.findall(r"^\| `(\w+)` \| (?:yes|no).*\| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: text for name, text in rows if name in SOLVERS or name == "solve"}
    assert list(listed) == ["solve", *SOLVERS]
    assert [listed[name] for name in SOLVERS] == [solver.summary for solver in SOLVERS.values()]


def test_every_solver_has_a_number():
    """That `Solution.link` holds, in the order of the table; and its link bears its name."""
    assert list(sj.solvers.SOLVERS) == sj.solution.SOLVERS[: len(sj.solvers.SOLVERS)]
    assert all(entry.link.name == name for name, entry in sj.solvers.SOLVERS.items())


def test_every_instance_is_taken_by_a_solver_and_every_solver_takes_one():
    taken = {pair: solvers_of(*pair) for pair in EVERYTHING}
    assert all(set(engines_of(pair[0])) <= set(names) for pair, names in taken.items())
    assert {name for names in taken.values() for name in names} == set(SOLVERS) - APPROXIMATE - OF_ONE_COLUMN


@pytest.mark.parametrize("name", ["solve", *SOLVERS])
def test_solvers_share_their_arguments(name):
    parameters = inspect.signature(getattr(sj, name)).parameters
    assert list(parameters)[:5] == ["problem", "init", "tol", "maxiter", "history"]
    for argument in ("tol", "maxiter", "history"):
        assert parameters[argument].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["tol"].default is None


@pytest.mark.parametrize("name", [n for n in sj.__all__ if callable(getattr(sj, n))])
def test_public_names_are_documented(name):
    assert len(inspect.getdoc(getattr(sj, name)) or "") > 40


def test_import_is_silent_and_leaves_jax_alone():
    code = (
        "import jax; before = dict(jax.config.values); import sparsejax, sparsejax.plots, sys; "
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


def test_a_table_of_solvers_changed_in_place_forgets_the_chosen_chains():
    problem = sj.Problem(losses.SquaredLoss(np.eye(4, 3), np.ones(4)), penalties.L1(0.1))
    table, old = TABLE, chosen_chain(problem)
    entry = table["admm"]
    try:
        table |= {"admm": entry._replace(link=sj.driver.Link("other", entry.link.run))}
        assert chosen_chain(problem).links[0].name == "other"
    finally:
        table["admm"] = entry
    assert chosen_chain(problem) == old


def test_tune_asks_a_changed_table():
    problem = sj.Problem(losses.SquaredLoss(np.eye(4, 3), np.ones(4)), penalties.L1(0.1))
    run = lambda: sj.tune(problem, losses.SquaredLoss(np.eye(4, 3), np.ones(4)), maxiter=1).solution.solver
    assert run() == "admm"
    entry = TABLE["admm"]
    try:
        TABLE["admm"] = entry._replace(suits=lambda problem: False)
        assert run() == "fista"
    finally:
        TABLE["admm"] = entry
