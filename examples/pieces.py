"""Neighbouring features belong together: which bands matter?

A spectrum of 200 channels, in 80 samples; two bands of channels matter. Folds choose the strength of a lasso,
and on a grid both strengths of a fused lasso. Prints for each model the number of nonzero weights, the number
of jumps between neighbouring weights and the relative error of the weights; writes ``pieces.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj

CHANNELS = 200


def fused(strength: float, ratio: float) -> sj.penalties.Sum:
    """Total variation, and l1 as a share of it."""
    return sj.penalties.TotalVariation(strength) + sj.penalties.L1(ratio * strength)


def main() -> None:
    """Choose, print, draw."""
    rng = np.random.default_rng(0)
    truth = np.zeros(CHANNELS)
    truth[40:70], truth[120:135] = 0.3, -0.5
    X = rng.standard_normal((80, CHANNELS))
    y = X @ truth + 0.5 * rng.standard_normal(80)
    loss = sj.losses.SquaredLoss(X, y)
    lasso, both = sj.Problem(loss, sj.penalties.L1(1.0)), sj.Problem(loss, fused(1.0, 0.1))
    strengths, shares = np.geomspace(3, 0.1, 10), np.array([0.02, 0.1, 0.3])
    grids = {
        "lasso": (lasso, jax.vmap(sj.penalties.L1)(float(sj.lambda_max(lasso)) * np.geomspace(1, 0.01, 15))),
        "fused lasso": (both, jax.vmap(jax.vmap(fused, (None, 0)), (0, None))(strengths, shares)),
    }
    found = {}
    for name, (problem, candidates) in grids.items():
        result = sj.cross_validate(problem, candidates, refit=True)
        found[name] = w = np.asarray(result.solution.params)
        jumps = np.count_nonzero(np.diff(w, prepend=0, append=0) != 0)
        error = np.linalg.norm(w - truth) / np.linalg.norm(truth)
        print(f"{name:12} {np.count_nonzero(w):4} weights, {jumps:4} jumps, error {error:.2f}")
    _, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(7, 4), layout="constrained")
    for ax, (name, w) in zip(axes, found.items(), strict=True):
        ax.step(np.arange(CHANNELS), truth, color="0.7", where="mid", label="truth")
        ax.step(np.arange(CHANNELS), w, where="mid", label=name)
        ax.legend(frameon=False)
    axes[1].set_xlabel("channel")
    plt.savefig("pieces.png", dpi=110)


if __name__ == "__main__":
    main()
