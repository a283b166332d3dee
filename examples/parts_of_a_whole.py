"""My columns are parts of a whole: how do I use ratios alone?

Compositions of 40 parts, as bacteria in a sample. Six parts matter, by ratios. The counts are taken at one
depth, and later ones at a hundred times that: with ``L1 + SumTo(0)`` the prediction is the same, with ``L1``
alone it moves with the depth. Prints the errors, writes ``parts_of_a_whole.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj

PARTS = 40


def main() -> None:
    """Choose by folds, predict, print, draw."""
    rng = np.random.default_rng(0)
    truth = np.zeros(PARTS)
    truth[:6] = [1.0, -0.8, 0.6, -1.0, 0.7, -0.5]
    logs = rng.standard_normal((160, PARTS))
    y = logs @ truth + 0.5 * rng.standard_normal(160)
    X, later, target = logs[:80], logs[80:] + np.log(100), y[80:]
    loss = sj.losses.SquaredLoss(X, y[:80], intercept=True)
    kinds = {
        "L1": sj.penalties.L1,
        "L1 + SumTo(0)": lambda s: sj.penalties.L1(s) + sj.penalties.SumTo(),
    }
    _, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    ax.bar(range(PARTS), truth, color="0.85", width=1.0, label="truth")
    for name, make in kinds.items():
        problem = sj.Problem(loss, make(1.0))
        strengths = float(sj.lambda_max(problem)) * np.geomspace(1, 1e-2, 20)
        result = sj.cross_validate(problem, jax.vmap(make)(strengths), refit=True)
        w, b = np.asarray(result.solution.params), float(result.intercept)
        error = np.sqrt(np.mean((target - later @ w - b) ** 2))
        print(
            f"{name:14} {np.count_nonzero(w):3} parts, sum {w.sum():+.3f}, error {error:.2f} at another depth"
        )
        ax.plot(range(PARTS), w, "o", markersize=4, label=name)
    ax.set(xlabel="part", ylabel="weight")
    ax.legend(frameon=False)
    plt.savefig("parts_of_a_whole.png", dpi=110)


if __name__ == "__main__":
    main()
