"""What the pages in docs/ show is what happens: each page is one program, run in its order."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from cases import data
from peers import L1_OF_SCIKIT_LEARN

import sparsejax as sj
import sparsejax.sklearn
from sparsejax.solvers import SOLVERS

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
TWIN = "index"  # its program is the README's
ELSEWHERE = {TWIN, "migrating-from-jaxopt"}  # test_readme.py, test_interop.py
PAGES = {
    "adding-a-penalty": sj.Penalty,
    "adding-a-loss": sj.Loss,
    "adding-a-solver": None,
    "the-first-call": None,
    "plots": None,
    "scikit-learn": None,
}
PLAIN = (
    "certificates",
    "choose-a-penalty",
    "choose-a-solver",
    "derivatives-and-tuning",
    "float32-and-gpu",
    "many-devices",
    "large-data",
    "porting",
    "progress",
    "survival",
    "transformations",
    "papers/aaai16",
    "papers/icdm14",
    "papers/ijcai19",
    "papers/mm11",
    "papers/multivariate",
)
TUTORIAL = (
    "tutorial/1-a-table-and-a-question",
    "tutorial/2-fit-and-read",
    "tutorial/3-choose-the-strength",
    "tutorial/4-stable-and-true",
    "tutorial/5-in-jax",
)


@pytest.fixture
def table():
    """The table of solvers, put back afterwards, with what was compiled while it was another."""
    before = dict(SOLVERS)
    yield SOLVERS
    SOLVERS.clear()
    SOLVERS.update(before)
    jax.clear_caches()


def text_of(page):
    return (DOCS / f"{page}.md").read_text()


def run(page):
    """The names that the blocks of a page leave."""
    text, names = text_of(page), {"__name__": page}
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        above = text[: block.start(1)].count("\n")  # so that a traceback has the line of the page
        exec(compile("\n" * above + block.group(1), f"{page}.md", "exec"), names)
    return names


def test_every_page_is_run():
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    programs = {page for page in pages if "\n```python\n" in text_of(page)}
    assert programs == {*PAGES, *PLAIN, *TUTORIAL, *ELSEWHERE}


def test_the_first_page_has_the_program_of_the_readme():
    program = r"```python\n.*?```\n\n```text\n.*?```"
    first, readme = (re.search(program, text, re.S) for text in (text_of(TWIN), README.read_text()))
    assert first.group() == readme.group()


@pytest.mark.parametrize("page", ["adding-a-penalty", "adding-a-loss", *PLAIN])
def test_page(page):
    if page == "porting" and "l1_ratio" not in L1_OF_SCIKIT_LEARN:
        pytest.skip("the page is written for scikit-learn 1.8 or newer, and says so")
    run(page)


def test_the_estimators_of_the_page(capsys):
    """Features chosen sensibly, passed on with their names; and every estimator stands in its table."""
    names = run("scikit-learn")
    assert names["search"].best_score_ > 0.95 and 0 < names["model"].coef_.any(axis=0).sum() < 13
    assert set(names["chosen"].columns) < set(names["search"].feature_names_in_)
    assert capsys.readouterr().out.startswith("accuracy 0.9")
    rows = re.findall(r"^\| (`Sp.*?|`\w+`.*?) \|", text_of("scikit-learn"), re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(sparsejax.sklearn.__all__)


@pytest.mark.parametrize("page", ["adding-a-penalty", "adding-a-loss"])
def test_the_table_of_a_page_is_the_protocol(page):
    """Every group with its methods, and nothing else."""
    rows = re.findall(r"^\| \*(.+?)\* \| (.+?) \|", text_of(page), re.M)
    shown = {group: set(re.findall(r"`(\w+)", names)) for group, names in rows}
    assert shown == {group: set(names) for group, names in PAGES[page]._groups.items()}


def test_the_pictures_of_the_page_are_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    axes = run("plots")["axes"]
    assert all(ax.has_data() for ax in axes)
    assert (tmp_path / "plots.png").stat().st_size > 0


def test_the_cache_of_the_page_is_kept(cache_settings):
    folder = run("the-first-call")["folder"]
    X, Y = data(n=11)
    sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.1)))
    assert any(path.name.startswith("jit_admm") for path in Path(folder).iterdir())


def test_a_solver_in_the_table_gets_paths(table):
    """With its entry alone: the solver of the page goes through a path."""
    names = run("adding-a-solver")
    others = dict(table)
    table.clear()
    table.update({"ista": others.pop("ista")._replace(suits=lambda problem: True)}, **others)
    problem = sj.Problem(names["loss"], sj.penalties.L1(0.2))
    path = sj.path(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.2, 0.1])), mode="warm", tol=1e-10)
    assert path.converged.all()
    assert path.num_iters[0] == names["solution"].num_iters != names["known"].num_iters


@pytest.mark.parametrize("page", TUTORIAL)
def test_a_page_of_the_tutorial_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    """And draws the pictures that it shows."""
    monkeypatch.chdir(tmp_path)
    run(page)
    text = text_of(page)
    shown = "".join(re.findall(r"^```text\n(.*?)^```", text, re.S | re.M))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()
    for name in re.findall(r"!\[.*?\]\((\S+\.png)\)", text):
        assert (tmp_path / name).stat().st_size > 0
        assert (DOCS / page).with_name(name).stat().st_size < 60_000


def test_every_dot_of_the_picture_of_peers_has_its_line(monkeypatch):
    """`benchmarks/peers.py` finds every row in the tables of results/."""
    folder = DOCS.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("picture_of_peers", folder / "peers.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    for label, _, *where in picture.ROWS:
        assert picture.ratio(*where) > 0, label
