"""Can one output help to predict another? Outputs as features.

The first output is linear in the inputs, the second a wave of the first. A lasso on the inputs cannot predict
the second; OFA-Lasso has kernel columns of the other output, and predicts both together. Prints the errors.
"""

import numpy as np

import sparsejax as sj


def simulate(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, 3) and two outputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    first = X[:, 0] + 0.5 * X[:, 1]
    second = np.sin(3 * first)
    return X, np.stack([first, second], axis=1) + 0.02 * rng.standard_normal((n, 2))


def main() -> None:
    """Fit with and without the other output, print."""
    X, Y = simulate(50, seed=0)
    X_new, Y_new = simulate(50, seed=1)
    print(f"{'':<34}{'first':>8}{'second':>9}   mean absolute error")
    for name, beta in (("lasso (outputs switched off)", 1e6), ("OFA-Lasso", 0.05)):
        model = sj.models.ofa_lasso.fit(X, Y, lam=0.05, beta=beta, input="linear")
        error = np.abs(np.asarray(model.predict(X_new)) - Y_new).mean(0)
        print(f"{name:<34}{error[0]:>8.3f}{error[1]:>9.3f}")


if __name__ == "__main__":
    main()
