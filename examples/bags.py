"""Which instances make a bag positive?

A bag is positive if at least one of its instances lies near one of two hidden points. The model chooses few
instances of the training set as prototypes; a bag's features are its similarities to them. Prints the
accuracy, and how near the prototypes of positive weight are to the hidden points.
"""

import numpy as np

from sparsejax.models import mil, multivariate

HIDDEN = np.array([[2.0, 0.0, 1.0], [-1.0, 2.0, -1.0]])


def simulate(bags: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instances of 3 features, the bag of each, and the labels -1 and 1 of the bags."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(bags), 5)
    X = rng.standard_normal((len(ids), 3)) * 1.5
    y = np.where(np.arange(bags) % 2, 1, -1)
    X[::5][y == 1] = HIDDEN[rng.integers(0, 2, np.sum(y == 1))] + 0.2 * rng.standard_normal(
        (np.sum(y == 1), 3)
    )
    return X, ids, y


def main() -> None:
    """Fit, print."""
    X, ids, y = simulate(100, seed=0)
    X_new, ids_new, y_new = simulate(100, seed=1)
    model = mil.fit(X, ids, y, measure=multivariate.hamming(scale=2.0), budget=4, C=300.0, bandwidth=0.6)
    accuracy = np.mean(np.asarray(model.predict(X_new, ids_new)) == y_new)
    weights = np.asarray(model.weights)
    positive = np.asarray(model.prototypes)[weights > 0]
    nearest = np.linalg.norm(positive[:, None] - HIDDEN[None], axis=2)
    print(f"{len(X)} instances in {len(y)} bags; {len(weights)} are kept, {len(positive)} speak for a bag")
    print(f"{accuracy:.0%} of 100 new bags are right")
    print("distance of the first of these to the nearer hidden point:", nearest.min(1)[:4].round(2).tolist())
    print("distance of each hidden point to the nearest of them:", nearest.min(0).round(2).tolist())


if __name__ == "__main__":
    main()
