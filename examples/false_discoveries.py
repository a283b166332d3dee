"""How many of the selected features are false? SLOPE bounds their share.

The design has 300 orthogonal features, and the noise has variance 1: then the expected share of false
features among those that SLOPE selects is at most q. Two lassos are compared with it. One has SLOPE's first
strength for all features and finds fewer true features; the other has the last strength and selects more
false features. Fifty draws for each number of true features. Prints the shares of false and of found
features, writes ``false_discoveries.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj

FEATURES, Q, DRAWS = 300, 0.1, 50


def main() -> None:
    """Draw data, solve all at once, print the rates, plot."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))[0]
    bh = np.asarray(sj.penalties.slope_strengths(FEATURES, Q))
    wanted = {"SLOPE": bh, "lasso, first strength": np.full(FEATURES, bh[0])}
    wanted["lasso, last strength"] = np.full(FEATURES, bh[-1])

    @jax.jit
    def solve(y: jax.Array, strengths: jax.Array) -> jax.Array:
        loss = sj.losses.SquaredLoss(X, y, scale=0.5)
        return sj.solve(sj.Problem(loss, sj.penalties.SortedL1(strengths))).params

    counts = np.array([5, 10, 20, 40])
    rates = {name: [] for name in wanted}
    for count in counts:
        truth = np.zeros((DRAWS, FEATURES))
        truth[:, :count] = 4.0
        Y = truth @ X.T + rng.standard_normal((DRAWS, FEATURES))
        for name, strengths in wanted.items():
            chosen = np.asarray(jax.vmap(solve, (0, None))(Y, strengths)) != 0
            false = (chosen[:, count:].sum(1) / np.maximum(chosen.sum(1), 1)).mean()
            power = chosen[:, :count].mean()
            rates[name].append((false, power))
            print(f"{count:3} true features, {name:22} false {false:.2f}, found {power:.2f}")
    _, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for name, values in rates.items():
        for ax, rate in zip(axes, np.array(values).T, strict=True):
            ax.plot(counts, rate, marker="o", label=name)
    axes[0].axhline(Q, color="0.7", linestyle="--")
    axes[0].set(title="share of false discoveries", xlabel="true features", ylim=(0, None))
    axes[1].set(title="share of true features found", xlabel="true features", ylim=(0, 1.05))
    axes[1].legend(frameon=False)
    plt.savefig("false_discoveries.png", dpi=110)


if __name__ == "__main__":
    main()
