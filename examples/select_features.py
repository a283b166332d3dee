"""Which pixels tell the ten digits apart, and which penalty should I take?

Three penalties on scikit-learn's digits, each at the strength that keeps about 180 of the 640 weights. l2,1
keeps or drops a pixel for all digits: take it to measure fewer things. The exclusive lasso keeps nearly all
pixels and gives each digit its own few weights: take it to say what is special about a class, and for
accuracy at an equal number of weights. Exclusive l2,1 does both, and lies between them: take it for fewer
pixels and few weights a digit.

Prints a table and writes ``selected_features.png`` into the current directory. Run it with
``python examples/select_features.py``; it takes a few seconds on a laptop.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sparsejax as sj

SIDE = 8
WEIGHTS = 180  # nonzero weights that every penalty may keep, of 64 x 10

PENALTIES = {
    "l2,1": sj.penalties.L21,
    "exclusive lasso": sj.penalties.ExclusiveLasso,
    "exclusive l2,1": lambda s: sj.penalties.ExclusiveL21(s / 8, s),
}
ROW = "{:<16} {:>9} {:>8} {:>7} {:>14} {:>12}"


def main() -> None:
    """Fit, print the table, draw the picture."""
    digits = load_digits()
    X_train, X_test, y_train, y_test = train_test_split(
        digits.data / 16, digits.target, test_size=0.3, random_state=0, stratify=digits.target
    )
    n, d = X_train.shape
    loss = sj.losses.SquaredLoss(X_train, np.eye(10)[y_train], intercept=True)
    strengths = np.geomspace(1, 1e-4, 40)

    print(f"digits: {n} training images, {d} pixels, 10 classes")
    print(f"each penalty at the strength of its path that keeps about {WEIGHTS} of {10 * d} weights\n")
    print(ROW.format("penalty", "strength", "weights", "pixels", "test accuracy", "duality gap"))

    fitted = {}
    for name, penalty in PENALTIES.items():
        # One compiled call solves all 40 strengths, each from the answer of the one before.
        path = sj.path(sj.Problem(loss, penalty(1.0)), jax.vmap(penalty)(strengths))
        assert bool(path.converged.all())
        kept = np.count_nonzero(np.asarray(path.params), axis=(1, 2))
        i = int(np.argmin(np.abs(kept - WEIGHTS)))
        W = np.asarray(path.params[i])
        scores = X_test @ W + np.asarray(loss.intercept(path.params[i]))
        accuracy = np.mean(scores.argmax(axis=1) == y_test)
        pixels = np.any(W != 0, axis=1).sum()
        gap = float(path.gap[i])
        print(ROW.format(name, f"{strengths[i]:.2g}", kept[i], pixels, f"{accuracy:.1%}", f"{gap:.0e}"))
        fitted[name] = W

    print("\nWhich one? At equal numbers of weights")
    print("  l2,1             measures the fewest pixels: take it if measurements cost")
    print("  exclusive lasso  spends its weights on each digit's own pixels: take it for accuracy")
    print("  exclusive l2,1   lies between: fewer pixels, and few weights a digit")

    ranking = sj.rank_features(fitted["exclusive l2,1"], 3)
    print("\nexclusive l2,1: the three pixels (row, column) with the largest weights of each digit")
    for digit in range(10):
        chosen = np.asarray(ranking.indices[:, digit])
        print(f"  {digit}:", "  ".join(f"({p // SIDE}, {p % SIDE})" for p in chosen))

    print("\nwrote", draw(fitted))


def draw(fitted) -> str:
    """One row a penalty: the weights of each digit as an image, blue below 0 and red above."""
    fig, axes = plt.subplots(len(fitted), 11, figsize=(13, 1.35 * len(fitted) + 0.9), layout="constrained")
    for row, (name, W) in zip(axes, fitted.items(), strict=True):
        bound = np.abs(W).max()
        for digit, ax in enumerate(row[:10]):
            image = np.ma.masked_equal(W[:, digit].reshape(SIDE, SIDE), 0)
            cmap = plt.get_cmap("RdBu_r").copy()
            cmap.set_bad("0.88")
            signed = ax.imshow(image, cmap=cmap, vmin=-bound, vmax=bound)
        fig.colorbar(signed, ax=row[9], ticks=[-bound, 0, bound], format="%.1g")
        count = np.count_nonzero(W, axis=1).reshape(SIDE, SIDE)
        shown = row[10].imshow(count, cmap="Greys", vmin=0, vmax=10)
        fig.colorbar(shown, ax=row[10], ticks=[0, 5, 10])
        row[0].set_ylabel(name, fontsize=10)
    for digit in range(10):
        axes[0, digit].set_title(f"digit {digit}", fontsize=10)
    axes[0, 10].set_title("digits using\nthe pixel", fontsize=9)
    for ax in axes.ravel():
        ax.set_xticks([])
        ax.set_yticks([])
    fig.suptitle("Weights of each pixel for each digit; grey: exactly zero", fontsize=11)
    fig.savefig("selected_features.png", dpi=130)
    return "selected_features.png"


if __name__ == "__main__":
    main()
