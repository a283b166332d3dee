"""Factorisations by tiles, and how many entries they ask LAPACK for at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax._core.tiles import (
    MAX_ONE_THREAD_ENTRIES,
    factorised,
    inverse_root,
    lower_solve,
    no_root,
    upper_solve,
)


@pytest.mark.parametrize("rows", [1, 31, 33, 64])
def test_roots_of_tiles(rows):
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((3 * rows, 3 * rows + 2))
    H = jnp.asarray(A @ A.T / A.shape[1] + np.eye(3 * rows))
    tile = lambda i, j: jax.lax.dynamic_slice(H, (i * rows, j * rows), (rows, rows))
    root = jax.jit(lambda: factorised(tile, 3, no_root(3 * rows, rows, H.dtype), inverted=True))()
    L = np.linalg.cholesky(H)
    np.testing.assert_allclose(np.tril(root.L), L, atol=1e-12)
    inverses = [np.linalg.inv(L[i : i + rows, i : i + rows]) for i in range(0, 3 * rows, rows)]
    np.testing.assert_allclose(root.inverses, np.concatenate(inverses), atol=1e-12)
    for sides in (1, 20):
        B = rng.standard_normal((sides, 3 * rows))
        np.testing.assert_allclose(
            lower_solve(root, jnp.asarray(B), 3), np.linalg.solve(L, B.T).T, atol=1e-11
        )
        np.testing.assert_allclose(
            upper_solve(root, jnp.asarray(B), 3), np.linalg.solve(L.T, B.T).T, atol=1e-11
        )


@pytest.mark.parametrize("rows", [1, 31, 64, 65, 131])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverses_of_roots(rows, dtype):
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((2, rows, rows + 2))
    S = (A @ A.transpose(0, 2, 1) / rows).astype(dtype)
    shifts = np.array([0.5, 2.0], dtype)
    expected = [
        np.linalg.inv(np.linalg.cholesky(s + t * np.eye(rows))) for s, t in zip(S, shifts, strict=True)
    ]
    atol = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(jax.jit(inverse_root)(S[0], shifts[0]), expected[0], atol=atol)
    np.testing.assert_allclose(jax.vmap(inverse_root)(S, shifts), np.stack(expected), atol=atol)
    assert np.isnan(inverse_root(-S[0], dtype(0))).any()


def test_the_program_of_an_inverse_does_not_grow_with_the_matrix():
    lines = [jax.jit(inverse_root).lower(np.eye(64 * m), 0.0).as_text().count("\n") for m in (2, 16)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("solver", "shape", "penalty"),
    [
        (sj.prox_newton, (150, 300, 1), sj.penalties.L1),
        (sj.variational_newton, (150, 600, 1), sj.penalties.L1),
        (sj.variational_newton, (150, 600, 16), sj.penalties.L21),
    ],
)
def test_no_solve_that_openblas_would_split_among_threads(solver, shape, penalty):
    n, d, k = shape
    X, Y = np.eye(n, d), np.ones((n, k))

    def solve(strength):
        return solver(sj.Problem(sj.losses.SquaredLoss(X, Y), penalty(strength))).params

    for f, x in ((solve, 1.0), (jax.vmap(solve), jnp.ones(3))):
        program = str(jax.make_jaxpr(f)(x))
        shapes = re.findall(r"\w+:f\d+\[([\d,]+)\] = triangular_solve", program)
        assert shapes
        entries = [np.prod([int(rows) for rows in shape.split(",")[-2:]]) for shape in shapes]
        assert max(entries) <= MAX_ONE_THREAD_ENTRIES
