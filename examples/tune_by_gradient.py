"""How do I choose many strengths at once? By the gradient.

Three blocks of features: all matter, some matter, none does. A grid over three strengths would be thousands
of solves; the derivative of the solution shows the way down in some twenty. Prints the strengths and the
losses.
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
    logs, rate = jnp.full(3, jnp.log(0.1)), 0.5
    for _ in range(25):
        value, slope = value_and_slope(logs)
        logs = logs - rate * slope / (1e-3 + jnp.linalg.norm(slope))
        rate *= 0.93
    print(f"one for each block: held-out loss {float(value):.3f} after 25 solves")
    print(
        "  strengths of the blocks, all, some and none of which matter:",
        np.exp(np.asarray(logs, float)).round(3).tolist(),
    )


if __name__ == "__main__":
    main()
