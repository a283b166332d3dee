"""Can I have less bias than l2,1? MCP by a few reweighted solves.

A concave penalty p(||w_i||) is replaced by its tangent at the last answer, so that a row that is large is
hardly penalised any more: ``alpha_i = p'(||w_i||)``. Each step is a convex problem with a certificate, and
lowers the concave objective (Candes, Wakin & Boyd 2008; MCP: Zhang 2010). Prints a table. Run it with
``python examples/reweighted.py``; it takes some seconds.
"""

import jax
import jax.numpy as jnp
import numpy as np

import sparsejax as sj

ROWS, FEATURES, TASKS, TRUE, STEPS = 120, 300, 3, 8, 6
GAMMA = 3.0  # of MCP: rows above gamma * alpha are not penalised
LINE = "{:<22} {:>9} {:>9} {:>11} {:>11}"


def simulate(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Data of a model with few features, and its weights."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS, FEATURES))
    W = np.zeros((FEATURES, TASKS))
    W[:TRUE] = rng.standard_normal((TRUE, TASKS))
    return X, X @ W + 0.5 * rng.standard_normal((ROWS, TASKS)), W


@jax.jit
def step(loss: sj.losses.SquaredLoss, alpha: jax.Array, W: jax.Array) -> sj.Solution:
    """Minimise the loss plus MCP's tangent at W, which is l2,1 with strengths p'(||w_i||); start at W."""
    norms = jnp.linalg.norm(W, axis=1)
    slopes = jnp.maximum(alpha - norms / GAMMA, 0)
    return sj.solve(sj.Problem(loss, sj.penalties.L21(slopes)), W)


def mcp(alpha: float, W: np.ndarray) -> float:
    """sum_i p(||w_i||): alpha t - t^2/(2 gamma) up to gamma alpha, constant beyond."""
    t = np.minimum(np.linalg.norm(W, axis=1), GAMMA * alpha)
    return float(np.sum(alpha * t - t**2 / (2 * GAMMA)))


def main() -> None:
    """Solve, reweight, print."""
    X, Y, truth = simulate(seed=0)
    loss = sj.losses.SquaredLoss(X, Y)
    alpha = 0.15 * float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
    print(LINE.format("", "kept", "of them", "error of W", "objective"))
    W, last = np.zeros((FEATURES, TASKS), X.dtype), np.inf
    for number in range(STEPS):
        solution = step(loss, alpha, W)
        assert bool(solution.converged), solution.message
        W = np.asarray(solution.params)
        kept = np.flatnonzero(np.any(W != 0, axis=1))
        objective = float(loss(W)) + mcp(alpha, W)
        assert objective <= last * (1 + 1e-6)
        last = objective
        name = "l2,1" if number == 0 else f"MCP, step {number}"
        error = np.linalg.norm(W - truth) / np.linalg.norm(truth)
        print(LINE.format(name, len(kept), np.sum(kept < TRUE), f"{error:.3f}", f"{objective:.4f}"))


if __name__ == "__main__":
    main()
