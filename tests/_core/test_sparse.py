"""X of which only the entries are stored: the same problems as with the dense X, and never a dense copy."""

import cases
import jax
import jax.numpy as jnp
import loss_cases
import numpy as np
import penalty_cases
import pytest
import scipy.sparse
from jax.experimental import sparse

import sparsejax as sj
from sparsejax._core.matrices.sparse import _product_of, as_matrix
from sparsejax.losses import CoxLoss, LogisticLoss, SquaredLoss
from sparsejax.penalties import L1, L21

N, D = 24, 1200
rng = np.random.default_rng(3)
WIDE = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.2)
TARGETS = WIDE[:, :4] @ rng.standard_normal((4, 2)) + 0.1 * rng.standard_normal((N, 2))
SMALL = rng.standard_normal((cases.N, penalty_cases.D)) * (rng.random((cases.N, penalty_cases.D)) < 0.5)


def both(make, X=WIDE):
    return make(X), make(scipy.sparse.csr_matrix(X))


@pytest.mark.parametrize("name", loss_cases.LOSSES)
def test_every_loss_is_the_same_function(name):
    """Value, gradient, lambda_max, gap and their derivative in the targets, with an intercept and weights."""
    case = loss_cases.LOSSES[name]
    H = np.random.default_rng(0).standard_normal((cases.N, cases.K))
    W = np.random.default_rng(1).standard_normal((penalty_cases.D, cases.K))
    weights = np.arange(cases.N) % 3.0
    dense, stored = both(lambda X: case(X, H, weights=weights, intercept=True), SMALL)
    assert np.count_nonzero(np.asarray(stored.X.data)) == np.count_nonzero(SMALL)

    @jax.jit
    def facts(loss):
        problem = sj.Problem(loss, L21(0.01))
        value, gradient = jax.value_and_grad(loss)(W)
        return value, gradient, sj.lambda_max(problem), sj.duality_gap(problem, W), loss.intercept(W)

    for ours, theirs in zip(facts(stored), facts(dense), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_cox():
    y = rng.random(N)
    dense, stored = both(lambda X: CoxLoss(X, y, np.arange(N) % 2))
    w = rng.standard_normal(D) / 50

    @jax.jit
    def facts(loss):
        return *jax.value_and_grad(loss)(w), sj.duality_gap(sj.Problem(loss, L1(0.05)), w)

    for ours, theirs in zip(facts(stored), facts(dense), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "form",
    [scipy.sparse.csc_matrix, scipy.sparse.coo_array, sparse.BCOO.fromdense, sparse.BCSR.fromdense],
)
def test_forms(form):
    loss = SquaredLoss(form(SMALL), np.zeros(cases.N))
    W = np.arange(penalty_cases.D) + 1.0
    np.testing.assert_allclose(loss.predictions(W).linear, SMALL @ W, rtol=1e-14)


def test_solvers_paths_and_folds():
    """The working set by default; `fista`; warm starts along a path; masks of rows; all as with dense X."""
    dense, stored = both(lambda X: SquaredLoss(X, TARGETS, intercept=True))
    top = float(sj.lambda_max(sj.Problem(dense, L21(1.0))))
    theirs, ours = (sj.Problem(loss, L21(top / 4)) for loss in (dense, stored))
    assert sj.solvers.pick(ours).function is sj.working_set
    reference = sj.solve(theirs, tol=1e-10)
    for solver in (sj.solve, sj.fista):
        solution = solver(ours, tol=1e-9)
        assert solution.converged
        np.testing.assert_allclose(solution.objective, reference.objective, rtol=1e-8)
    strengths = jax.vmap(L21)(top / jnp.array([2.0, 4.0]))
    found = sj.path(ours, strengths, tol=1e-9)
    assert found.converged.all()
    np.testing.assert_allclose(found.objective[1], reference.objective, rtol=1e-8)
    a, b = (sj.cross_validate(problem, strengths, folds=2, tol=1e-8) for problem in (ours, theirs))
    np.testing.assert_allclose(a.fold_loss, b.fold_loss, rtol=1e-5)


def test_working_sets_that_stay_sparse(monkeypatch):
    """Where their columns are too many to be dense: gathered entries, in more than one chunk."""
    for name in ("MAX_DENSE_SIZE", "MIN_ROOM_ENTRIES"):
        monkeypatch.setattr(f"sparsejax._core.matrices.sparse.{name}", 0)
    for name in ("CHUNK_ENTRIES", "MIN_CHUNK_ENTRIES", "MIN_LARGE_CHUNK_ENTRIES"):
        monkeypatch.setattr(f"sparsejax._core.matrices.sparse.{name}", 512)
    dense, stored = both(lambda X: LogisticLoss(X, (TARGETS[:, 0] > 0) * 1.0, intercept=True), WIDE[:, :1100])
    top = float(sj.lambda_max(sj.Problem(dense, L1(1.0))))
    np.testing.assert_allclose(sj.lambda_max(sj.Problem(stored, L1(1.0))), top, rtol=1e-12)
    theirs, ours = (sj.Problem(loss, L1(top / 4)) for loss in (dense, stored))
    solution = sj.working_set(ours, tol=1e-9)
    assert solution.converged and solution.num_iters <= 5
    assert sj.duality_gap(theirs, solution.params) <= 2e-9
    columns = np.array([3, 1100, 1, 7])  # the second is none
    part = np.asarray(stored.X.columns_at(columns) @ np.eye(4))
    np.testing.assert_array_equal(part, np.insert(WIDE[:, [3, 1, 7]], 1, 0, axis=1))
    batch = rng.standard_normal((2, N, 3))
    np.testing.assert_allclose(jax.vmap(lambda U: stored.X.T @ U)(batch)[1], WIDE[:, :1100].T @ batch[1])


def test_columns_that_are_known_by_row_too():
    """Products of a softmax's working set: by the kernel of a CPU, by chunks as elsewhere, and under vmap."""
    X = as_matrix("X", scipy.sparse.csr_matrix(WIDE)).divided(jnp.full(D, 2.0))
    ix = jnp.asarray(rng.permutation(D)[:700].astype(np.int32)).at[5].set(D)  # D is no column
    part = jax.jit(lambda X: X.sparse_columns_at(ix, X.row_order()))(X)
    dense = np.where(np.asarray(ix) < D, np.pad(WIDE, ((0, 0), (0, 1)))[:, ix], 0) / 2
    W, U = rng.standard_normal((3, 700, 4)), rng.standard_normal((3, N, 4))
    np.testing.assert_allclose(part @ W[0], dense @ W[0], atol=1e-13)
    np.testing.assert_allclose(part.T @ U[0], dense.T @ U[0], atol=1e-13)
    np.testing.assert_allclose(jax.vmap(lambda W: part @ W)(W), dense @ W, atol=1e-13)
    np.testing.assert_allclose(jax.vmap(lambda U: part.T @ U)(U), dense.T @ U, atol=1e-13)
    each = jax.vmap(lambda factor: (part._replace(data=part.data * factor)).T @ U[0])(jnp.arange(3.0))
    np.testing.assert_allclose(each, np.arange(3.0)[:, None, None] * (dense.T @ U[0]), atol=1e-13)
    args = part.data, part.rows, part.cols, part.used, None
    np.testing.assert_allclose(_product_of(True, part.shape, None)(*args, U[0]), dense.T @ U[0], atol=1e-13)
    np.testing.assert_allclose(_product_of(False, part.shape, None)(*args, W[0]), dense @ W[0], atol=1e-13)


def test_derivatives():
    """In the strength, by the columns of the support; in the stored entries, as those of the dense X."""
    dense, stored = both(lambda X: LogisticLoss(X, (TARGETS[:, 0] > 0) * 1.0))
    top = float(sj.lambda_max(sj.Problem(dense, L1(1.0))))

    def slopes(loss, entries, put):
        def squares(entries, a):
            problem = sj.Problem(loss._replace(X=put(loss.X, entries)), L1(a))
            return jnp.sum(sj.solve(problem, tol=1e-11).params ** 2)

        return jax.grad(squares, argnums=(0, 1))(entries, top / 4)

    X = stored.X
    ours = slopes(stored, X.data, lambda X, data: X._replace(data=data))
    theirs = slopes(dense, dense.X, lambda X, data: data)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
    wanted = np.asarray(theirs[0])[X.rows, X.cols]
    np.testing.assert_allclose(ours[0], wanted, atol=1e-6 * np.abs(wanted).max())


def test_many_active_rows_are_left_to_fista():
    """More rows than a working set holds, and no dense X for the engine."""
    X = np.eye(600)
    problem = sj.Problem(SquaredLoss(scipy.sparse.csr_matrix(X), np.ones(600), scale=0.5), L1(0.1))
    solution = sj.working_set(problem)
    assert solution.converged
    np.testing.assert_allclose(solution.params, 0.9, atol=1e-3)


def damaged(**changes):
    X = scipy.sparse.csr_matrix(SMALL)
    for name, (place, value) in changes.items():
        getattr(X, name)[place] = value
    return X


BAD = {
    "an index beyond the columns": (damaged(indices=(0, 50)), "X is no valid csr_matrix"),
    "pointers that fall": (damaged(indptr=(1, 40)), "X is no valid csr_matrix"),
    "NaN": (damaged(data=(0, np.nan)), "stored values of X has 1 value"),
    "too many columns": (
        scipy.sparse.csr_matrix(([1.0], ([0], [2])), shape=(cases.N, 2**31)),
        "indices are int32",
    ),
    "duplicates that overflow": (
        scipy.sparse.coo_matrix(([1e308] * 2, ([0, 0], [2, 2])), shape=(cases.N, 3)),
        "sum overflows",
    ),
    "columns of a BCOO that are dense": (
        sparse.BCOO.fromdense(np.eye(cases.N), n_dense=1),
        "n_batch=0 and n_dense=1, which must be 0",
    ),
    "complex": (scipy.sparse.csr_matrix(SMALL * 1j), "stored values of X is complex"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    X, message = BAD[name]
    with pytest.raises((TypeError, ValueError), match=message):
        SquaredLoss(X, np.zeros(cases.N))


def test_duplicates_are_added_and_zeros_dropped():
    entries = ([1.0, 2.0, 0.0, 4.0], ([0, 0, 1, 1], [2, 2, 0, 1]))
    X = SquaredLoss(scipy.sparse.coo_matrix(entries, shape=(2, 3)), np.zeros(2)).X
    assert X.data.tolist() == [4.0, 3.0] and X.cols.tolist() == [1, 2]


def test_what_needs_a_dense_x_says_so():
    loss = SquaredLoss(scipy.sparse.csr_matrix(SMALL), np.zeros(cases.N))
    with pytest.raises(TypeError, match="gram: X is sparse"):
        loss.gram()
    with pytest.raises(TypeError, match=r"admm .*majorizer"):
        sj.admm(sj.Problem(loss, L1(0.1)))
