"""What does each penalty keep? Eight penalties on one small problem.

Twelve features, four outputs. Features 0 and 1 matter to all outputs, 2 to 5 to one output each, and 6 and
7 are nearly copies of 0 and 1. Each penalty has the strength at which the number of nonzero weights is
nearest to 16 of 48. Prints a table, writes ``penalties.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj

WEIGHTS = 16
PAIRS = sj.groups.from_labels(np.arange(12) // 2)  # 0 and 1, 2 and 3, ...
ALIKE = sj.groups.from_lists([[0, 6], [1, 7], [2, 3], [4, 5], [8, 9], [10, 11]], num_features=12)
VIEWS = sj.groups.label_views(2, 2)  # outputs 0 and 1 share a first label, 0 and 2 a second one
PENALTIES = {
    "L1": sj.penalties.L1,
    "L21": sj.penalties.L21,
    "ExclusiveLasso": sj.penalties.ExclusiveLasso,
    "ExclusiveL21": lambda s: sj.penalties.ExclusiveL21(s / 2, s),
    "GroupLasso": lambda s: sj.penalties.GroupLasso(s, PAIRS),
    "SparseGroupLasso": lambda s: sj.penalties.SparseGroupLasso(s, 0.5, PAIRS),
    "ExclusiveGroupL21": lambda s: sj.penalties.ExclusiveGroupL21(s, ALIKE),
    "ExclusiveGroupLasso": lambda s: sj.penalties.ExclusiveGroupLasso(s, VIEWS),
}
LINE = "{:<20} {:>9} {:>8} {:>6} {:>9}"


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Data as above."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 12))
    X[:, 6:8] = X[:, :2] + 0.3 * rng.standard_normal((80, 2))
    W = np.zeros((12, 4))
    W[:2] = [[1.0, -1.0, 0.8, 0.6], [-0.7, 0.9, 0.6, -1.0]]
    W[range(2, 6), range(4)] = 1.0
    return X, X @ W + 0.3 * rng.standard_normal((80, 4))


def main() -> None:
    """A path a penalty; print, draw."""
    X, Y = simulate()
    loss = sj.losses.SquaredLoss(X, Y)
    strengths = np.geomspace(10, 1e-3, 40)
    print(LINE.format("penalty", "strength", "weights", "rows", "gap"))
    fig, axes = plt.subplots(2, 4, figsize=(9, 6.6), layout="constrained")
    for ax, (name, penalty) in zip(axes.flat, PENALTIES.items(), strict=True):
        path = sj.path(sj.Problem(loss, penalty(1.0)), jax.vmap(penalty)(strengths))
        assert bool(path.converged.all()), name
        kept = np.count_nonzero(np.asarray(path.params), axis=(1, 2))
        i = int(np.argmin(np.abs(kept - WEIGHTS)))
        W = np.asarray(path.params[i])
        rows = int(np.any(W != 0, axis=1).sum())
        print(LINE.format(name, f"{strengths[i]:.2g}", kept[i], rows, f"{path.gap[i]:.0e}"))
        cmap = plt.get_cmap("RdBu_r").copy()
        cmap.set_bad("0.85")
        signed = ax.imshow(
            np.ma.masked_equal(W / np.abs(W).max(), 0), cmap=cmap, vmin=-1, vmax=1, aspect="auto"
        )
        ax.set(xticks=range(4), yticks=range(12))
        ax.set_title(f"{name}\n{kept[i]} weights, {rows} rows", fontsize=9)
    fig.colorbar(signed, ax=axes, label="weight, over the largest", shrink=0.6)
    fig.supxlabel("output", fontsize=9)
    fig.supylabel("feature", fontsize=9)
    fig.suptitle("Weights, over the largest; blue below 0, red above, grey: exactly zero", fontsize=11)
    fig.savefig("penalties.png", dpi=110)


if __name__ == "__main__":
    main()
