"""What is drawn: lines and their data, zeros left out, names, marks, errors. Results are made by hand.

docs/plots.md and the docstrings draw what the functions of the library return.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import sparsejax as sj
from sparsejax import plots
from sparsejax.selection.tuning import Tried
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, History

M, D, K, N = 6, 2000, 3, 5
STRENGTHS = np.geomspace(1.0, 0.1, M)


def solution(params, status=None, history=0, objective=1.0, gap=0.0):
    """Of one problem, or of as many as there are codes."""
    shape = np.shape(status)
    status = np.int32(CONVERGED) if status is None else np.asarray(status, np.int32)
    numbers = [np.full(shape, x) for x in (objective, gap, 0.0)]
    recorded = history if isinstance(history, History) else History(*np.zeros((2, *shape, history)))
    return sj.Solution(
        jnp.asarray(params), *numbers, np.zeros(shape, np.int32), jnp.asarray(status), recorded
    )


@pytest.fixture(autouse=True)
def no_figures():
    """Other tests of the same process may have left some open."""
    plt.close("all")


@pytest.fixture(scope="module")
def weights():
    """Along a path, (M, D, K): feature 100 j enters at strength j // 2, 12 are ever kept."""
    W = np.zeros((M, D, K))
    for j in range(12):
        enters = j // 2
        W[enters:, 100 * j, j % K] = (j + 1) * np.arange(1, M - enters + 1)
    return W


@pytest.fixture(scope="module")
def validated():
    """Six strengths on four folds: the least mean loss is at 4, and 2 is within one standard error of it."""
    loss = np.array([5.0, 3.0, 2.03, 2.2, 2.0, 2.5]) + 0.1 * np.array([-1, 0, 1, 0.5])[:, None]
    kept = np.array([0, 1, 4, 6, 9, 12]) * np.ones((4, 1), int)
    penalties = sj.penalties.ExclusiveL21(STRENGTHS, STRENGTHS / 8)
    return sj.CrossValidation(penalties, *map(jnp.asarray, (loss, kept, 0 * loss, loss > 0)))


@pytest.fixture(scope="module")
def stable():
    """At threshold 0.6: features 0 to 8 are selected, 9 and 10 are not, the others never."""
    share = np.zeros((M, D))
    share[2:, :9] = np.linspace(0.6, 1, 9)
    share[3:, 9:11] = 0.4
    found = share.max(axis=0) >= 0.6
    return sj.StabilitySelection(
        share, found, np.array(1.0), np.full(8, 9), 0 * share[:, :8].T, np.ones((8, M), bool)
    )


def tuning(penalty, loss, **tried):
    """Of four solves at most, with these values of the strengths."""
    loss = np.append(loss, [np.nan] * (4 - len(loss)))
    solved, best = int(np.isfinite(loss).sum()), float(np.nanmin(loss))
    empty = solution(np.zeros((D, K)))
    return sj.Tuning(
        penalty,
        empty,
        best,
        np.int32(solved),
        np.int32(0),
        Tried(penalty._replace(**tried), loss, loss, loss),
    )


@pytest.fixture(scope="module")
def tuned():
    walk = np.array([1.0, 0.5, 0.25, np.nan])
    return tuning(sj.penalties.ExclusiveL21(0.5, 0.05), [3.0, 1.0, 2.0], alpha=walk, beta=walk / 10)


@pytest.fixture(scope="module")
def recorded():
    """The gap is halved at each step; nothing after the tenth."""
    gap = np.where(np.arange(20) <= 10, 0.5 ** np.arange(20), np.nan)
    return solution(np.zeros(2), history=History(2 + gap, gap), objective=2.0)


@pytest.fixture(scope="module")
def X():
    X = np.random.default_rng(0).standard_normal((20, N))
    X[:, 3] = 0.1
    return X


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def every(weights, validated, stable, tuned, recorded, X):
    """One call of each."""
    path = solution(weights, [CONVERGED] * M)
    return {
        "path": lambda **to: plots.path(path, STRENGTHS, **to),
        "cross_validation": lambda **to: plots.cross_validation(validated, **to),
        "stability": lambda **to: plots.stability(stable, STRENGTHS, **to),
        "support": lambda **to: plots.support(weights[-1], **to),
        "correlation": lambda **to: plots.correlation(X, [0, 1, 3], **to),
        "convergence": lambda **to: plots.convergence({"a": recorded, "b": recorded.history}, **to),
        "tuning": lambda **to: plots.tuning(tuned, **to),
    }


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def line(ax, label):
    (found,) = (found for found in ax.lines if found.get_label() == label)
    return found


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", plots.__all__)
def test_it_draws_into_the_axes_given_and_touches_nothing_else(every, name, ax):
    before, figures = dict(plt.rcParams), plt.get_fignums()
    assert every[name](ax=ax) is ax
    FigureCanvasAgg(ax.figure).draw()
    assert ax.get_xlabel() and ax.get_ylabel()
    assert (dict(plt.rcParams), plt.get_fignums()) == (before, figures)


@pytest.mark.parametrize("name", plots.__all__)
def test_few_things_are_drawn_at_2000_features(every, name, ax):
    every[name](ax=ax)
    assert len(ax.lines) + len(ax.collections) + len(ax.images) + len(ax.texts) <= 12


def test_without_axes_it_makes_some(every):
    made = every["path"]()
    assert plt.get_fignums() == [made.figure.number]
    plt.close(made.figure)


@pytest.mark.parametrize("name", plots.__all__)
def test_without_matplotlib_it_names_the_extra(every, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"sparsejax\[plots\]"):
        every[name]()


def test_axes_of_another_kind(every):
    with pytest.raises(TypeError, match="ax must be matplotlib axes, got ndarray"):
        every["tuning"](ax=np.array([1]))


def test_lines_differ_without_colour(every, ax):
    lines = [x for x in every["path"](ax=ax).lines if x.get_label() in set(map(str, range(D)))]
    assert len(lines) == 6
    assert len({x.get_marker() for x in lines}) == len({to_rgba(x.get_color()) for x in lines}) == 6


# ---------------------------------------------------------------- by strength


def test_path_of_norms(weights, ax):
    shuffled = np.array([3, 0, 5, 1, 4, 2])
    plots.path(solution(weights[shuffled], [CONVERGED] * M), STRENGTHS[shuffled], chosen=0, ax=ax)
    # index 0 is the fourth strength, at which eight features are kept: the largest six have a name
    order = [100 * j for j in np.argsort(-weights[3, ::100].max(axis=1)[:12], kind="stable")[:6]]
    assert labels(ax) == ["6 others", *map(str, order), "chosen"]
    assert line(ax, "chosen").get_xdata()[0] == STRENGTHS[3]
    for feature in order:
        x, y = line(ax, str(feature)).get_data()
        expected = np.linalg.norm(weights[:, feature], axis=1)
        enters = np.flatnonzero(expected)[0]
        np.testing.assert_allclose(x, STRENGTHS)
        np.testing.assert_allclose(y[max(enters - 1, 0) :], expected[max(enters - 1, 0) :])
        assert np.isnan(y[: max(enters - 1, 0)]).all()
    (others,) = ax.collections
    assert [len(s) for s in others.get_segments()] == [
        min(7 - j // 2, M) for j in range(12) if 100 * j not in order
    ]
    assert (ax.get_xscale(), ax.xaxis_inverted(), ax.get_ylabel()) == ("log", True, "norm of the row")


def test_path_of_coefficients_with_names_and_the_choices_of_folds(weights, validated, ax):
    names = [f"gene {i}" for i in range(D)]
    path = solution(-weights, [CONVERGED] * M)
    plots.path(path, STRENGTHS, chosen=validated, task=0, feature_names=names, ax=ax)
    assert labels(ax) == ["gene 300", "gene 600", "gene 900", "gene 0", "best", "1 s.e."]
    np.testing.assert_array_equal(line(ax, "gene 0").get_ydata(), -np.arange(1, M + 1))
    assert [line(ax, x).get_xdata()[0] for x in labels(ax)[-2:]] == [STRENGTHS[4], STRENGTHS[2]]
    assert ax.get_ylabel() == "coefficient"


def test_path_with_the_choices_of_an_estimator(weights, validated, ax):
    """Whose results have an axis of one beta before that of alphas."""
    one_beta = jax.tree.map(lambda leaf: leaf[:, None] if jnp.ndim(leaf) > 1 else leaf, validated)
    plots.path(solution(weights, [CONVERGED] * M), STRENGTHS, chosen=one_beta, ax=ax)
    assert [line(ax, x).get_xdata()[0] for x in labels(ax)[-2:]] == [STRENGTHS[4], STRENGTHS[2]]


def test_no_line_where_a_feature_is_zero(ax):
    """But for the step to zero; in all lines alike, those that have a name and the others."""
    W = np.outer([1.0, 0, 0, 0, 1, 0], np.arange(7.0, 0, -1))
    plots.path(solution(W, [CONVERGED] * M), STRENGTHS, ax=ax)
    np.testing.assert_array_equal(line(ax, "0").get_ydata(), [7, 0, np.nan, 0, 7, 0])
    (other,) = ax.collections[0].get_paths()
    np.testing.assert_array_equal(other.vertices[:, 1], [1, 0, np.nan, 0, 1, 0])


def test_a_solution_that_is_not_finite_is_left_out(weights, ax):
    broken = weights.copy()
    broken[1] = np.nan
    plots.path(solution(broken, [CONVERGED, NON_FINITE] + [CONVERGED] * 4), STRENGTHS, ax=ax)
    assert labels(ax)[0] == "6 others"  # 12 are kept at some other strength
    assert line(ax, "not converged").get_xdata() == STRENGTHS[1]


def test_what_did_not_converge_is_marked(weights, ax):
    plots.path(solution(weights, [CONVERGED] * 4 + [MAX_ITER] * 2), STRENGTHS, ax=ax)
    np.testing.assert_array_equal(line(ax, "not converged").get_xdata(), STRENGTHS[4:])


def test_strengths_of_zero_have_a_linear_axis(weights, ax):
    plots.path(solution(weights, [CONVERGED] * M), np.append(STRENGTHS[:-1], 0), ax=ax)
    assert ax.get_xscale() == "linear"


def test_cross_validation(validated, ax):
    plots.cross_validation(validated, ax=ax)
    curve, _, best, sparse, rings = ax.lines
    np.testing.assert_array_equal(curve.get_xdata(), STRENGTHS)
    np.testing.assert_allclose(curve.get_ydata(), validated.loss)
    (band,) = ax.collections
    low, high = band.get_paths()[0].get_extents().get_points()[:, 1]
    np.testing.assert_allclose(low, np.min(validated.loss - validated.standard_error))
    np.testing.assert_allclose(high, np.max(validated.loss + validated.standard_error))
    assert (best.get_xdata()[0], sparse.get_xdata()[0]) == (STRENGTHS[4], STRENGTHS[2])
    np.testing.assert_allclose(rings.get_ydata(), validated.loss[jnp.array([4, 2])])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("alpha", "held-out loss, mean of 4 folds")


def test_cross_validation_of_a_score(validated, ax):
    plots.cross_validation(validated._replace(score=10 - validated.fold_loss), STRENGTHS / 2, ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_data(), [STRENGTHS / 2, 10 - validated.loss])
    level = ax.lines[1].get_ydata()[0]
    np.testing.assert_allclose(level, 10 - validated.loss[4] - validated.standard_error[4])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("strength", "score, mean of 4 folds")


def test_cross_validation_of_a_grid(validated, ax):
    """Its last axis, through the best."""
    alpha, beta = np.meshgrid([2.0, 1.0], STRENGTHS, indexing="ij")
    both = [np.stack([x + 1, x], axis=1) for x in (validated.fold_loss, np.asarray(validated.num_nonzero))]
    zero = 0 * both[0]
    penalties = sj.penalties.ExclusiveL21(1.0, 1.0)._replace(alpha=alpha, beta=beta)
    grid = sj.CrossValidation(penalties, *map(jnp.asarray, (*both, zero, zero == 0)))
    plots.cross_validation(grid, ax=ax)
    other, curve, _, best, sparse, _ = ax.lines
    np.testing.assert_allclose(curve.get_data(), [STRENGTHS, validated.loss])
    np.testing.assert_allclose(other.get_data(), [STRENGTHS, validated.loss + 1])
    assert (best.get_xdata()[0], sparse.get_xdata()[0]) == (STRENGTHS[4], STRENGTHS[2])
    assert ax.get_xlabel() == "beta"
    assert labels(ax)[0] == "1 other lines of the grid"


def test_strengths_that_go_their_own_ways_are_asked_for(validated):
    odd = validated._replace(penalties=sj.penalties.ExclusiveL21(STRENGTHS, STRENGTHS[::-1]))
    with pytest.raises(ValueError, match="alpha and beta are not multiples of one another: give strengths"):
        plots.cross_validation(odd)


def test_cross_validation_of_one_strength(validated, ax):
    """A point with a bar of one standard error; the strength is that of the penalties."""
    one = [np.asarray(a)[:, :1] for a in (validated.fold_loss, validated.num_nonzero)]
    result = sj.CrossValidation(sj.penalties.L1(STRENGTHS[:1]), *one, 0 * one[0], one[0] > 0)
    plots.cross_validation(result, ax=ax)
    assert (ax.get_xlabel(), ax.lines[0].get_xdata().tolist()) == ("strength", [STRENGTHS[0]])
    assert ax.collections[0].get_linewidth()[0] > 0


def test_the_label_names_the_term_of_a_sum(validated, ax):
    P = sj.penalties
    whole = lambda groups: P.GroupLasso(STRENGTHS[0], sj.groups.from_labels(groups))
    for first, last, label in (
        (P.L1(0.1), P.SquaredL2(STRENGTHS), "strength of SquaredL2"),
        (whole([0, 0, 1]), whole([0, 1, 1])._replace(alpha=STRENGTHS), "alpha of GroupLasso 2"),
    ):
        constant = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], M, 0), first)
        plots.cross_validation(validated._replace(penalties=constant + last), ax=ax)
        assert ax.get_xlabel() == label
    both = tuning(P.L1(0.5) + P.SquaredL2(0.1), [3.0, 1.0])
    walk = np.array([1.0, 0.5, np.nan, np.nan])
    tried = both.tried._replace(penalties=P.L1(0.5)._replace(strength=walk) + P.SquaredL2(0.1))
    plots.tuning(both._replace(tried=tried), ax=ax)
    assert ax.get_xlabel() == "strength of L1"


def test_outputs_that_choose_alone_have_no_one_curve(X, ax):
    Y = X[:, :2]
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L1(0.0))
    strengths = jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.1], X.dtype))
    result = sj.cross_validate(problem, strengths, per_output=True)
    with pytest.raises(ValueError, match="result is of per_output=True"):
        plots.cross_validation(result, ax=ax)


def test_one_strength_is_a_point(X):
    """Lines of one point have their marker."""
    problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    strengths = jax.vmap(sj.penalties.L1)(jnp.array([0.1], X.dtype))
    stable = sj.stability_selection(problem, strengths, num_subsamples=4)
    for draw, found in ((plots.path, sj.path(problem, strengths)), (plots.stability, stable)):
        ax = draw(found, np.array([0.1]), ax=Figure().subplots())
        named = [line for line in ax.lines if line.get_marker() not in (None, "None", "")]
        assert named and all(line.get_markevery() is None for line in named)


def test_stability(stable, ax):
    plots.stability(stable, STRENGTHS, threshold=0.6, ax=ax)
    assert labels(ax) == ["2 not selected", "3 others selected", *"876543", "threshold"]
    assert [len(x.get_segments()) for x in ax.collections] == [2, 3]
    np.testing.assert_array_equal(line(ax, "8").get_ydata(), [np.nan, 0, 1, 1, 1, 1])
    assert line(ax, "threshold").get_ydata()[0] == 0.6


def test_another_threshold(stable):
    with pytest.raises(ValueError, match=r"threshold 0\.9 is not the one that selected"):
        plots.stability(stable, STRENGTHS, threshold=0.9)
    with pytest.raises(TypeError, match=r"plots\.stability: threshold must be a number, got 0 "):
        plots.stability(stable, STRENGTHS, threshold=pd.Series([0.6, 0.6]))


# ---------------------------------------------------------------- maps


def test_support_tells_zero_from_small(ax):
    W = np.zeros((D, K))
    W[[7, 900]] = [[1e-12, 0, -4], [0, 1, 0]]
    plots.support(solution(W), task_names=["a", "b", "c"], ax=ax)
    (image,) = ax.images
    shown = image.get_array()
    np.testing.assert_array_equal(shown.mask, W[[7, 900]] == 0)
    np.testing.assert_array_equal(shown.compressed(), [1e-12, -4, 1])
    assert (image.norm.vmin, image.norm.vmax) == (-4, 4)
    assert ax.patch.get_hatch()
    assert [x.get_text() for x in ax.get_yticklabels()] == ["7", "900"]
    assert [x.get_text() for x in ax.get_xticklabels()] == ["a", "b", "c"]
    assert ax.get_ylabel() == "feature (2 of 2000 are kept)"


def test_support_of_one_sign(ax):
    plots.support(np.eye(3, 2) + np.eye(3, 2, k=1), ax=ax)
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 1)


def test_support_of_one_output_has_bars_with_signs(ax):
    plots.support([0.0, 1.0, -2.0], feature_names=["x", "y", "z"], task_names=["malignant"], ax=ax)
    assert [bar.get_width() for bar in ax.patches] == [-2, 1]
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    assert [x.get_text() for x in ax.get_yticklabels()] == ["z", "y"]
    assert (ax.get_xlabel(), list(ax.images)) == ("weight (malignant)", [])


def test_names_are_drawn_as_they_are(weights, ax):
    """Matplotlib hides names that begin with an underscore, and reads formulas between dollars."""
    names = [f"_gene {i}" if i == 300 else f"US$ {i} $" for i in range(D)]
    plots.path(solution(weights, [CONVERGED] * M), STRENGTHS, feature_names=names, ax=ax)
    ax.figure.canvas.draw()
    shown = [text.get_text().strip() for text in ax.get_legend().get_texts()]
    assert "_gene 300" in shown and r"US\$ 600 \$" in shown
    plots.support(np.array([True, False]), feature_names=["a$b$", "c"], ax=ax)
    ax.figure.canvas.draw()


def test_support_of_one_output_of_many_features(ax):
    W = np.linspace(1, 2, 1001)[:, None]
    plots.support(W, ax=ax)
    np.testing.assert_array_equal([bar.get_width() for bar in ax.patches], W[:-41:-1, 0])
    assert ax.get_ylabel() == "feature (1001 of 1001 are kept, the 40 largest are drawn)"
    assert "task" not in ax.get_xlabel()


def test_support_of_more_features_than_lines(ax):
    W = np.zeros((1001, 2))
    W[1:] = np.where(np.arange(1000) % 4 == 1, -5, 1)[:, None]
    plots.support(W, ax=ax)
    np.testing.assert_array_equal(ax.images[0].get_array(), np.full((250, 2), -5))
    assert ax.get_ylabel() == "feature (1000 of 1001 are kept, 4 to a line)"
    assert ax.yaxis.get_major_formatter()(1, 0) == "5"


def test_support_of_nothing(ax):
    plots.support(np.zeros((4, 2)), ax=ax)
    assert ([x.get_text() for x in ax.texts], list(ax.images)) == (["every weight is zero"], [])


def test_correlation(X, ax):
    plots.correlation(X, [4, 0, 3], feature_names=list("abcde"), ax=ax)
    shown = ax.images[0].get_array()
    np.testing.assert_allclose(shown[:2, :2], abs(np.corrcoef(X[:, [4, 0]].T)), rtol=1e-12)
    assert shown.mask.tolist() == [[False, False, True], [False, False, True], [True] * 3]
    assert [x.get_text() for x in ax.get_xticklabels()] == ["e", "a", "d"]


def test_correlation_of_what_was_selected(X, stable):
    params = np.array([[0, 0], [1.0, 0], [0, 0], [0, 0], [0, 2]])
    chosen = stable._replace(selected=np.array([True, False, True, False, False]))
    found = [plots.correlation(X, x, ax=Figure().subplots()) for x in (solution(params), chosen)]
    assert [[x.get_text() for x in ax.get_xticklabels()] for ax in found] == [["1", "4"], ["0", "2"]]


# ---------------------------------------------------------------- solves


def test_convergence(recorded, ax):
    plots.convergence({"ours": recorded, "theirs": recorded.history}, ax=ax)
    for name in ("ours", "theirs"):
        np.testing.assert_array_equal(line(ax, name).get_data(), [np.arange(11), 0.5 ** np.arange(11)])
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "relative duality gap")


def test_convergence_of_the_objective(recorded, ax):
    """Over the lowest, which is that of the solution; where none is given, the last of the history."""
    plots.convergence(recorded, "objective", ax=ax)
    plots.convergence(recorded.history, "objective", ax=ax)
    plots.convergence(recorded.history, "objective", optimum=1.0, ax=ax)
    first, second, third = (x.get_ydata() for x in ax.lines)
    np.testing.assert_allclose(first, 0.5 ** np.arange(11) / 2)
    lowest = 2 + 0.5**10
    np.testing.assert_allclose(second[:-1], (0.5 ** np.arange(10) - 0.5**10) / lowest)
    assert np.isnan(second[-1])
    np.testing.assert_allclose(third, 1 + 0.5 ** np.arange(11))
    assert ax.get_legend() is None


def test_tuning_of_two_strengths(tuned, ax):
    plots.tuning({"first": tuned, "second": tuned}, ax=ax)
    np.testing.assert_allclose(line(ax, "first").get_data(), [[1, 0.5, 0.25], [0.1, 0.05, 0.025]])
    assert line(ax, "start").get_data() == ([1.0], [0.1])
    assert line(ax, "best").get_data() == ([0.5], [0.05])
    assert labels(ax) == ["first", "second", "start", "best"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("alpha", "beta", "log")


def test_tuning_of_one_strength_and_of_many(ax):
    walk = np.array([1.0, 0.5, np.nan, np.nan])
    plots.tuning(tuning(sj.penalties.L1(0.5), [3.0, 1.0], strength=walk), ax=ax)
    np.testing.assert_array_equal(ax.lines[0].get_data(), [[1, 0.5], [3, 1]])
    assert (ax.get_xlabel(), ax.get_xscale(), ax.get_yscale()) == ("strength", "log", "linear")
    rows = tuning(sj.penalties.L1(np.ones(3)), [3.0, 1.0], strength=np.ones((4, 3)))
    ax = plots.tuning(rows, ax=Figure().subplots())
    np.testing.assert_array_equal(ax.lines[0].get_data(), [[1, 2], [3, 1]])
    assert (ax.get_xlabel(), ax.get_xscale(), ax.get_ylabel()) == ("solve", "linear", "held-out loss")


# ---------------------------------------------------------------- errors


def test_wrong_input_is_named(weights, validated, stable, tuned, recorded, X):
    path, one = solution(weights, [CONVERGED] * M), solution(weights[0])
    other = tuning(sj.penalties.L1(0.5), [3.0, 1.0], strength=np.ones(4))
    unknown = History(recorded.history.objective, np.full(20, np.nan))
    cases = [
        (TypeError, "solutions must be the Solution of sparsejax.path", plots.path, validated, STRENGTHS),
        (ValueError, "this is one solution", plots.path, one, STRENGTHS),
        (
            ValueError,
            r"strengths must be 6 finite numbers, \(6,\), got \(5,\)",
            plots.path,
            path,
            STRENGTHS[1:],
        ),
        (TypeError, "strengths must hold real numbers", plots.path, path, ["a"] * M),
        (ValueError, "2 axes", plots.path, solution(weights[None], [[0] * M]), STRENGTHS),
        (
            TypeError,
            "real numbers, got dict",
            plots.path,
            path._replace(params={"a": X}),
            STRENGTHS,
        ),
        (TypeError, "CrossValidation of sparsejax.cross_validate", plots.cross_validation, path),
        (ValueError, "strengths must be 6", plots.cross_validation, validated, [1.0]),
        (TypeError, "StabilitySelection of", plots.stability, path, STRENGTHS),
        (ValueError, r"batch of \(6,\) solutions; draw one, solutions\[i\]", plots.support, path),
        (ValueError, r"shape \(6, 2000, 3\); it must be 1-d or 2-d", plots.support, weights),
        (ValueError, "must be finite", plots.support, [np.nan, 1.0]),
        (TypeError, "selected must be a Solution", plots.correlation, X, [0.5, 1.0]),
        (ValueError, "columns 0 to 4", plots.correlation, X, [0, 5]),
        (ValueError, "1 features are selected", plots.correlation, X, [0]),
        (ValueError, "selected has 2000 features, but X has 5 columns", plots.correlation, X, stable),
        (TypeError, "must be a Solution or History", plots.convergence, {"a": tuned}),
        (ValueError, "is empty", plots.convergence, {}),
        (ValueError, "no history: call the solver with history=100", plots.convergence, one),
        (ValueError, "is a batch", plots.convergence, path),
        (
            ValueError,
            'a: no finite gap was recorded; if none is known, draw quantity="objective"',
            plots.convergence,
            {"a": unknown},
        ),
        (ValueError, "quantity must be one of", plots.convergence, recorded, "excess"),
        (TypeError, "must be a Tuning", plots.tuning, recorded),
        (ValueError, "searches are over different strengths", plots.tuning, {"a": tuned, "b": other}),
    ]
    for kind, text, call, *arguments in cases:
        with pytest.raises(kind, match=text):
            call(*arguments)
    with pytest.raises(ValueError, match="feature_names must be 2000 names"):
        plots.path(path, STRENGTHS, feature_names=["a"])
    with pytest.raises(ValueError, match="task_names must be 1 names, got 3"):
        plots.support([1.0, 2.0], task_names=3)
    with pytest.raises(ValueError, match="chosen must be an integer from 0 to 5"):
        plots.path(path, STRENGTHS, chosen=M)
    with pytest.raises(ValueError, match="task must be an integer from 0 to 2"):
        plots.path(path, STRENGTHS, task=K)
    with pytest.raises(ValueError, match="optimum is 3, but an objective of 2 was reached"):
        plots.convergence(recorded, "objective", optimum=3.0)
    with pytest.raises(TypeError, match="traced: draw outside jit"):
        jax.eval_shape(plots.support, jnp.ones(3))
    assert plt.get_fignums() == []  # nothing was opened for what could not be drawn


def test_a_grid_of_one_alpha_is_a_line_of_betas():
    betas = np.array([0.3, 0.1, 0.01])
    loss = np.array([3.0, 2.0, 1.0]) + np.array([-0.1, 0.1])[:, None]
    penalties = sj.penalties.ExclusiveLasso(0.1)._replace(beta=jnp.asarray(betas[:, None]))
    grid = sj.CrossValidation(
        penalties, *map(jnp.asarray, (a[..., None] for a in (loss, loss, loss, loss > 0)))
    )
    ax = plots.cross_validation(grid, ax=Figure().subplots())
    np.testing.assert_allclose(ax.lines[0].get_data(), [betas, [3, 2, 1]])
    assert ax.get_xlabel() == "beta"
    path = sj.Solution(
        jnp.ones((3, 4)), *np.zeros((3, 3)), np.zeros(3, np.int32), jnp.zeros(3, jnp.int32), None
    )
    ax = plots.path(path, betas, chosen=grid, ax=Figure().subplots())
    assert [x.get_xdata()[0] for x in ax.lines if x.get_label() == "best"] == [0.01]


def test_frequencies_at_a_strength_that_failed_do_not_hide_the_others():
    share = np.array([[1.0, 0.4, 0.0], [np.nan] * 3])
    stable = sj.StabilitySelection(
        share, np.zeros(3, bool), np.array(np.nan), np.full(4, 2), np.zeros((4, 2)), np.ones((4, 2), bool)
    )
    ax = plots.stability(stable, [0.5, 0.3], threshold=0.6, ax=Figure().subplots())
    assert ax.get_legend_handles_labels()[1][0] == "2 not selected"


def test_stability_has_names(stable, ax):
    plots.stability(stable, STRENGTHS, feature_names=[f"gene {i}" for i in range(D)], ax=ax)
    assert labels(ax)[2:] == [f"gene {i}" for i in "876543"]


@pytest.mark.parametrize("strength", [7.0, 0.7, 1.0])
def test_one_strength_is_within_its_axes(strength, ax):
    loss = np.array([[5.0], [5.2], [4.9]])
    penalty = sj.penalties.L1(np.array([strength]))
    result = sj.CrossValidation(penalty, *map(jnp.asarray, (loss, loss.astype(int), 0 * loss, loss > 0)))
    plots.cross_validation(result)
    left, right = plt.gca().get_xlim()
    assert left > 1.1 * strength > 0.9 * strength > right


def test_the_axis_has_every_strength(ax):
    """Also those at which no feature has a weight."""
    plots.path(solution(np.zeros((M, 4)), [CONVERGED] * M), STRENGTHS, ax=ax)
    left, right = ax.get_xlim()
    assert left >= STRENGTHS[0] and right <= STRENGTHS[-1]


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_norms_of_rows_neither_overflow_nor_underflow(size, ax):
    W = np.full((M, 3, 2), size, np.float32)
    plots.path(solution(W, [CONVERGED] * M), STRENGTHS, ax=ax)
    assert labels(ax) == ["0", "1", "2"]


def test_a_batch_of_cross_validations_is_named():
    def found(loss):
        kept = jnp.ones(loss.shape, int)
        return sj.CrossValidation(sj.penalties.L1(STRENGTHS[:2]), loss, kept, 0 * loss, loss > 0)

    loss = jnp.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.5]])
    with pytest.raises(ValueError, match="batch"):
        plots.cross_validation(jax.vmap(found)(jnp.stack([loss, loss])))


def test_correlation_of_a_solution_of_nan(X, ax):
    with pytest.raises(ValueError, match="not finite"):
        plots.correlation(X, solution(np.full(X.shape[1], np.nan)), ax=ax)


def test_names_at_the_mouse_beside_a_map(ax):
    plots.support(np.ones((100, 3)), ax=ax)
    assert [ax.format_ydata(y) for y in (-0.7, -0.3, 0.4, 99.4, 99.7)] == ["", "0", "0", "99", ""]


def test_correlation_without_rows(ax):
    with pytest.raises(ValueError, match="X has no rows"):
        plots.correlation(np.zeros((0, 5)), [0, 1], ax=ax)
