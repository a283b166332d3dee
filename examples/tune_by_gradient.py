"""How do I choose many strengths at once? By the gradient.

Of three blocks of features, all features of the first matter, some of the second, none of the third. A grid
over three strengths takes thousands of solves. Gradient descent on the logarithms of the strengths takes 25,
since each solve also gives the derivative of the held-out loss. Prints the strengths and the losses.
"""

import jax
import jax.numpy as jnp
import numpy as np

import sparsejax as sj

BLOCKS = np.repeat(np.arange(3), 10)  # of 30 features


def main() -> None:
    """Tune one strength, then three, print."""
    rng = np.random.default_rng(0)
    w = np.zeros(30)
    w[:10], w[10:13] = 0.5, 2.0
    X = rng.standard_normal((120, 30))
    y = X @ w + 1.5 * rng.standard_normal(120)
    train, held_out = (sj.losses.SquaredLoss(X[rows], y[rows]) for rows in (slice(60), slice(60, 120)))

    one = sj.tune(sj.Problem(train, sj.penalties.L1(0.1)), held_out)
    print(f"one strength:       held-out loss {float(one.loss):.3f} after {int(one.num_solves)} solves")

    # Any function of the strengths will do: here three of them, by hand.
    def loss(logs):
        penalty = sj.penalties.L1(jnp.exp(logs)[BLOCKS])
        return held_out(sj.solve(sj.Problem(train, penalty), tol=1e-5).params)

    value_and_slope = jax.jit(jax.value_and_grad(loss))
    logs, slope, rate = jnp.full(3, jnp.log(0.1)), jnp.zeros(3), 0.5
    for _ in range(25):  # the first step is zero: the last value is of the strengths that are printed
        logs = logs - rate * slope / (1e-3 + jnp.linalg.norm(slope))
        value, slope = value_and_slope(logs)
        rate *= 0.93
    print(f"one for each block: held-out loss {float(value):.3f} after 25 solves")
    print(
        "  strengths of the blocks, all, some and none of which matter:",
        np.exp(np.asarray(logs, float)).round(3).tolist(),
    )


if __name__ == "__main__":
    main()
