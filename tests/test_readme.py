"""What the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import sparsejax as sj
from sparsejax.problem import as_protocol
from sparsejax.solvers import SOLVERS, chain_of, pick

README = Path(__file__).parents[1] / "README.md"
N = 60
ONLY_ENTRIES = sj.penalties.ExclusiveLasso(0.1)  # makes no row 0
BASES = {"Loss", "LinearModelLoss", "SumLoss", "GramLoss", "BatchedSquaredLoss"}
SOLVER_PAGE = README.parent / "docs" / "choose-a-solver.md"


def test_first_example_prints_what_it_says(tmp_path, monkeypatch):
    """And the block after it draws the picture; the third one solves a problem of any X and Y."""
    monkeypatch.chdir(tmp_path)
    text, names = README.read_text(), {}
    first, second, third = re.findall(r"```python\n(.*?)```", text, re.S)
    expected = re.search(r"```text\n(.*?)```", text, re.S).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(first, "README.md", "exec"), names)
    assert printed.getvalue() == expected
    assert len(first.splitlines()) <= 14
    exec(compile(second, "README.md", "exec"), names)
    assert (tmp_path / "features.png").stat().st_size > 0
    exec(compile(third, "README.md", "exec"), names := {"X": np.eye(30, 5), "Y": np.eye(30, 5)})
    assert names["gap"] <= 1e-4


def test_its_two_commands_are_the_ones_ci_runs():
    """A picture and a test run, one line each: `.ci/run` reads them here."""
    commands = re.findall(r"^```bash\n(.*?)\n```$", README.read_text(), re.S | re.M)
    assert commands == [
        'python -m pip install ".[examples]" && python examples/select_features.py',
        'python -m pip install ".[test]" && python -m pytest',
    ]
    assert " README.md)" in (README.parent / ".ci" / "run").read_text()


def test_table_of_solvers_is_the_table():
    """Names and summaries, and what each takes: by what its entry says of a problem with some penalty."""
    cells = r"^\| `(\w+)` \| (yes|no).*? \| (yes|no).*? \| (yes|no).*? \| (.*) \|$"
    rows = re.findall(cells, SOLVER_PAGE.read_text(), re.M)
    X, Y = np.eye(3), np.eye(3, 2)
    columns = (
        (sj.losses.SquaredLoss(X, Y), sj.losses.SquaredLoss(X, Y[:, 0])),
        (
            sj.losses.LogisticLoss(X, Y),
            sj.losses.LogisticLoss(X, Y[:, 0]),
            sj.losses.QuantileLoss(X, Y[:, 0], 0.5, 0.1),
        ),
        (jax.tree_util.Partial(jnp.sum),),
    )
    penalties = (
        sj.penalties.L21(0.1),
        sj.penalties.ExclusiveGroupL21(0.1, sj.groups.from_labels([0, 0, 1])),
        sj.penalties.ExclusiveGroupLasso(0.1, sj.groups.label_views(1, 2)),
    )

    def takes(fits, losses):
        matrix, *vector = losses
        pairs = [(matrix, penalty) for penalty in penalties] + [(loss, penalties[0]) for loss in vector]
        problems = (as_protocol("test", sj.Problem(*pair)) for pair in pairs)
        return "yes" if any(fits(problem) is None for problem in problems) else "no"

    expected = [("solve", "yes", "yes", "yes", "picks one of the others")]
    for name, entry in SOLVERS.items():
        expected.append((name, *(takes(entry.fits, losses) for losses in columns), entry.summary))
    assert rows == expected


def test_table_of_chains_is_the_table():
    """Who goes on after whom, over problems of every structure: the names in the last column, no others."""
    rows = re.findall(r"^\| `(\w+)` \| [^|`]+ \| ([^|]+) \|$", SOLVER_PAGE.read_text(), re.M)
    shown = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows}
    y = np.arange(N) % 2.0
    losses = [
        loss(X, y if k == 1 else np.stack([y] * k, axis=1))
        for loss in (sj.losses.SquaredLoss, sj.losses.LogisticLoss)
        for X in (np.zeros((N, 20)), np.zeros((N, 5000)), scipy.sparse.eye(N, 5000))
        for k in (1, 2)
    ]
    size = 2100  # rows and features: a Hessian that is too large to be formed
    losses += [
        sj.losses.LogisticLoss(X, np.zeros(size)) for X in (np.zeros((size, size)), scipy.sparse.eye(size))
    ]
    losses += [sj.losses.QuantileLoss(np.zeros((N, d)), y, 0.5, 0.1) for d in (20, 5000)]
    found = {}
    for loss in losses:
        for penalty in (sj.penalties.L21(0.1), sj.penalties.ExclusiveL21(0.1, 0.1)):
            problem = as_protocol("test", sj.Problem(loss, penalty))
            for name, entry in SOLVERS.items():
                if entry.fits(problem) is None:
                    links = chain_of(entry.link, problem).links
                    found.setdefault(name, set()).update(link.name for link in links[1:])
    assert shown == {name: names for name, names in found.items() if names}


def loss_of(name, n, d, k):
    """An instance of a loss that the README names; two for k = 1 are one column."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((n, d)), np.arange(n * k).reshape(n, k) % 2.0
    if name == "CoxLoss":
        return sj.losses.CoxLoss(X, np.arange(1.0, n + 1), Y[:, 0] > 0) if k == 1 else None
    if name == "SoftmaxLoss":
        return sj.losses.SoftmaxLoss(X, np.eye(2)[np.arange(n) % 2])
    if name.startswith("..."):
        return sj.losses.LogisticLoss(X, Y) + sj.losses.GraphLaplacian(1 - np.eye(k), 0.1) if k > 1 else None
    if name.startswith("your"):
        return jax.tree_util.Partial(jnp.sum)
    options = {"q": 0.5, "smoothing": 0.1} if name == "QuantileLoss" else {}
    return getattr(sj.losses, name)(X, 2 * Y - 1 if "Hinge" in name else Y, **options)


def test_table_of_losses_is_what_solve_takes():
    """Over small and wide problems of one and two columns, with a penalty of every kind."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \| yes \| yes \| yes \|", README.read_text(), re.M)
    assert len(rows) == 7
    for cell, solvers in rows:
        taken = set()
        for name in re.findall(r"`(.*?)`", cell) or [cell]:
            of_one = {
                next(key for key, entry in SOLVERS.items() if entry is pick(as_protocol("test", problem)))
                for n, d, k in ((N, 4, 1), (N, 4, 2), (N, 1000, 1), (N, 1000, 2), (130, 1000, 1))
                if (loss := loss_of(name, n, d, k)) is not None
                for penalty in (sj.penalties.L21(0.1), sj.penalties.ExclusiveL21(0.1, 0.1), ONLY_ENTRIES)
                for problem in [sj.Problem(loss, penalty)]
            }
            assert not taken or taken == of_one, f"{name} is not as its neighbours in the table"
            taken = of_one
        assert re.findall(r"`(\w+)`", solvers) == [key for key in SOLVERS if key in taken], cell


def test_losses_of_the_table_are_all():
    named = set(re.findall(r"\w+Loss\b", README.read_text()))
    assert named == {name for name in sj.losses.__all__ if name.endswith("Loss")} - BASES


def test_penalties_of_the_table_are_all():
    named = set(re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", README.read_text(), re.M))
    names = {name for cell in named for name in re.findall(r"`(\w+)", cell)}
    assert set(sj.penalties.__all__) - {"Penalty", "RowNorm", "Sum", "ByLeaf"} <= names
