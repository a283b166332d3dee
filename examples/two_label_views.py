"""My rows have two kinds of labels: how do I use both?

A linear model of every pair of labels (even and 0 or 1, odd and 0 or 1, ...), in which the labels of each
view compete for pixels and pairs that share a label share weights. Trained on few digits; prints the areas
under the curve of pairs that are rare and of those that are not, by the strength of the graph.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sparsejax as sj


def views(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels of both views, 0 and 1."""
    return np.eye(2)[y % 2], np.eye(5)[y // 2]


def main() -> None:
    """Fit with graphs of several strengths, print."""
    digits = load_digits()
    X, X_new, y, y_new = train_test_split(digits.data / 16, digits.target, random_state=0)
    few = np.concatenate([np.flatnonzero(y == digit)[: 2 if digit < 4 else 20] for digit in range(10)])
    X, y = X[few], y[few]
    pairs = np.asarray(sj.models.multi_semantic.enrich(*views(y_new)))  # (n, 10): 1 where a row has both
    similar = sj.graphs.from_views(2, 5)  # pairs that share one of their two labels
    digit_of = np.arange(10) % 5 * 2 + np.arange(10) // 5  # of a pair
    print(f"{len(y)} images: 2 of the digits 0 to 3, 20 of the others; mean area under the curve\n")
    print(f"{'strength of the graph':<24}{'2 images':>10}{'20 images':>11}")
    for strength in (0.0, 0.01, 0.1, 1.0):
        graph = sj.losses.GraphLaplacian(similar, strength)
        model = sj.models.multi_semantic.fit(X, *views(y), strength=0.02, graph=graph)
        assert bool(model.solution.converged)
        scores = np.asarray(model.decision_function(X_new))
        areas = np.array([float(sj.metrics.auc(pairs[:, j], scores[:, j])) for j in range(10)])
        print(f"{strength:<24}{areas[digit_of < 4].mean():>10.3f}{areas[digit_of >= 4].mean():>11.3f}")


if __name__ == "__main__":
    main()
