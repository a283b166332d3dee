"""How do the weights change with the strength? A path is a vmap.

`jax.vmap` of the constructor makes penalties with a leading axis; `sj.path` solves them in one compiled
program. The same works by hand, over whatever is a leaf of the problem: here quarters of the rows, as
weights of 0 and 1. Prints the order of the features, the largest gap and the features kept without each
quarter, and writes ``path_by_vmap.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import sparsejax as sj
from sparsejax import plots


def main() -> None:
    """Solve, print, draw."""
    X, y = load_diabetes(return_X_y=True)
    X, y = X / X.std(0), (y - y.mean()) / y.std()
    problem = sj.Problem(sj.losses.SquaredLoss(X, y), sj.penalties.L1(1.0))
    top = float(sj.lambda_max(problem))
    strengths = np.geomspace(top, top / 100, 20)
    path = sj.path(problem, jax.vmap(sj.penalties.L1)(strengths))
    W = np.asarray(path.params)
    order = np.argsort([np.argmax(w != 0) if w.any() else 99 for w in W.T])
    print("features in the order in which they come in:", order.tolist())
    print(f"largest gap of {len(W)} solutions: {float(path.gap.max()):.0e}")

    quarters = (np.arange(len(X))[None] % 4 != np.arange(4)[:, None]).astype(X.dtype)  # (4, n), 0: left out

    @jax.jit
    @jax.vmap
    def without(weights):
        return sj.solve(sj.Problem(sj.losses.SquaredLoss(X, y, weights=weights), sj.penalties.L1(top / 10)))

    four = without(quarters)
    assert bool(four.converged.all())
    kept = [np.flatnonzero(w).tolist() for w in np.asarray(four.params)]
    print("kept without one quarter of the rows:", *kept, sep="\n  ")

    fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    plots.path(path, strengths / top, ax=ax)
    ax.set_xlabel("strength / lambda_max")
    fig.savefig("path_by_vmap.png", dpi=110)


if __name__ == "__main__":
    main()
