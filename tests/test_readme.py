"""What the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sparsejax as sj
from sparsejax.problem import as_protocol
from sparsejax.solvers import SOLVERS

README = Path(__file__).parents[1] / "README.md"


def test_first_example_prints_what_it_says():
    text = README.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    expected = re.search(r"```text\n(.*?)```", text, re.S).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == expected
    assert len(code.splitlines()) <= 14


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
    rows = re.findall(cells, README.read_text(), re.M)
    X, Y = np.eye(3), np.eye(3, 2)
    columns = (
        (sj.losses.SquaredLoss(X, Y), sj.losses.SquaredLoss(X, Y[:, 0])),
        (sj.losses.LogisticLoss(X, Y), sj.losses.LogisticLoss(X, Y[:, 0])),
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
