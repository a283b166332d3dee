"""My features say the same: how do I keep one of each kind?

Thirty measurements of cell nuclei, many nearly the same (radius, perimeter, area). Every pair with a
correlation above 0.6 is a group whose members compete. Prints how correlated the best eight are, beside
those of l2,1.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import sparsejax as sj

KEPT = 8
LINE = "{:<20} {:>17} {:>10}  {}"


def main() -> None:
    """Fit both, print."""
    data = load_breast_cancer()
    X, X_new, y, y_new = train_test_split(
        data.data, data.target.astype(float), random_state=0, stratify=data.target
    )
    mean, deviation = X.mean(0), X.std(0)
    X, X_new = (X - mean) / deviation, (X_new - mean) / deviation
    groups = sj.groups.from_correlation(X, threshold=0.6)
    model = sj.models.uncorrelated_group.fit(X, y, alpha=0.01, groups=groups)  # the logistic loss
    loss = sj.losses.LogisticLoss(X, y, intercept=True)
    plain = sj.solve(sj.Problem(loss, sj.penalties.L21(0.005)))
    assert bool(model.solution.converged) and bool(plain.converged)

    print(f"{groups.num_groups} pairs of {X.shape[1]} measurements are correlated by more than 0.6\n")
    print(LINE.format("", "mean |correlation|", "accuracy", f"of the best {KEPT}"))
    fits = {
        "groups of pairs": (model.W, model.intercept),
        "l2,1": (plain.params, loss.intercept(plain.params)),
    }
    for name, (w, b) in fits.items():
        best = np.argsort(-np.abs(np.asarray(w)))[:KEPT]
        correlation = float(sj.metrics.mean_abs_correlation(X, best))
        accuracy = np.mean((X_new @ np.asarray(w) + float(b) > 0) == (y_new > 0))
        names = ", ".join(data.feature_names[i] for i in best[:3])
        print(LINE.format(name, f"{correlation:.2f}", f"{accuracy:.1%}", names + ", ..."))


if __name__ == "__main__":
    main()
