"""How do I use my own penalty or loss?

The penalty is half the squared sum of the weights times a strength, which keeps their sum near 0. The loss is
the mean of log cosh. Neither defines a dual, so in the two problems with this loss the gap is NaN and the
residual decides. Prints solution and message of three problems, and a derivative.
"""

import jax
import jax.numpy as jnp
import numpy as np

import sparsejax as sj


class Balanced(sj.Penalty, leaves=("strength",)):
    """``strength * (sum_i w_i)^2 / 2``: weights that sum to about 0."""

    def value(self, W):
        return self.strength * jnp.sum(W) ** 2 / 2

    def prox(self, V, scaling=1.0):  # V minus one number, the same for all entries
        t = scaling * self.strength
        return V - t * jnp.sum(V) / (1 + t * V.size)


class LogCosh(sj.Loss, leaves=("X", "y")):
    """The mean of ``log cosh`` of the residuals: squares near 0, absolute values far away."""

    def __call__(self, W):
        r = self.X @ W - self.y
        return jnp.mean(jnp.logaddexp(r, -r))


def main() -> None:
    """Solve with each, print."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6))
    w = np.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0])
    y = X @ w + 0.1 * rng.standard_normal(60)
    y[:5] += 20  # five that went wrong
    X, y = jnp.asarray(X), jnp.asarray(y)

    for name, loss, penalty in (
        ("least squares, L1", sj.losses.SquaredLoss(X, y), sj.penalties.L1(0.05)),
        ("log cosh, L1", LogCosh(X, y), sj.penalties.L1(0.05)),
        ("log cosh, balanced", LogCosh(X, y), Balanced(1.0)),
    ):
        solution = sj.solve(sj.Problem(loss, penalty), jnp.zeros(6))
        print(f"{name}: {np.asarray(solution.params, float).round(2).tolist()}")
        print(f"  sum {float(solution.params.sum()):+.2f}; {solution.message}")

    @jax.grad
    def slope(strength):  # of the first weight, in the strength: every solution is differentiable
        return sj.solve(sj.Problem(LogCosh(X, y), sj.penalties.L1(strength)), jnp.zeros(6), tol=1e-5).params[
            0
        ]

    print(f"derivative of the first weight in the strength: {float(slope(0.05)):+.2f}")


if __name__ == "__main__":
    main()
