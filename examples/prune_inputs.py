"""Which inputs does my network need? A prox after each step.

A small classifier of the digits that scikit-learn ships is trained three times, with l2,1, the exclusive
lasso and exclusive l2,1 on the rows of its first layer (one row a pixel). Prints accuracies and the number
of pixels left; writes ``pruned_inputs.png``.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparsejax import penalties
from sparsejax.interop.optax import proximal

HIDDEN, STEPS, RATE = 32, 4000, 0.3


def scores(params, X):
    hidden = jax.nn.relu(X @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["last"]["kernel"] + params["last"]["bias"]


def train(penalty, X, y):
    """Full-batch gradient descent with the prox of the penalty on the first layer's weights."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "first": {"kernel": jax.random.normal(keys[0], (X.shape[1], HIDDEN)) / 8, "bias": jnp.zeros(HIDDEN)},
        "last": {"kernel": jax.random.normal(keys[1], (HIDDEN, 10)) / 6, "bias": jnp.zeros(10)},
    }
    chosen = penalties.ByLeaf({"first": {"kernel": penalty, "bias": None}, "last": None})
    optimizer = proximal(optax.sgd(RATE), chosen, RATE)

    def loss(params):
        return optax.losses.softmax_cross_entropy_with_integer_labels(scores(params, X), y).mean()

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS))(
        (params, optimizer.init(params))
    )
    return params


def main():
    """Train, print, draw."""
    digits = load_digits()
    X, X_test, y, y_test = train_test_split(digits.data / 16, digits.target, random_state=0)
    runs = {
        "l2,1": penalties.L21(0.012),
        "exclusive lasso": penalties.ExclusiveLasso(0.005),
        "exclusive l2,1": penalties.ExclusiveL21(0.008, 0.001),
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), constrained_layout=True)
    print(f"{'penalty':<18}{'test accuracy':>14}{'pixels':>8}{'weights':>9}")
    for axis, (name, penalty) in zip(axes, runs.items(), strict=True):
        params = train(penalty, X, y)
        kernel = params["first"]["kernel"]
        norms = jnp.linalg.norm(kernel, axis=1)
        accuracy = (scores(params, X_test).argmax(1) == y_test).mean()
        pixels, weights = int((norms > 0).sum()), int((kernel != 0).sum())
        print(f"{name:<18}{accuracy:>14.3f}{pixels:>8}{weights:>9}")
        image = jnp.where(norms > 0, norms, jnp.nan).reshape(8, 8)
        shown = axis.imshow(image, cmap="viridis", vmin=0)
        axis.set_facecolor("0.9")
        axis.set(xticks=[], yticks=[], title=f"{name}: {pixels} of 64 pixels,\n{accuracy:.1%} right")
        figure.colorbar(shown, ax=axis, shrink=0.7, label="norm of the row")
    figure.savefig("pruned_inputs.png", dpi=150)
    print("pruned_inputs.png")


if __name__ == "__main__":
    main()
