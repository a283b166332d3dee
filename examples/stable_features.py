"""Would other rows select the same features?

Six of 200 features matter. One call solves a path on 40 halves of the rows. Stability selection keeps a
feature if at least 80 % of the halves select it at one strength of the path. Cross-validation, for
comparison, predicts well and keeps too many features. Prints both selections.
"""

import jax
import numpy as np

import sparsejax as sj

TRUE = 6


def main() -> None:
    """Select, print."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 200))
    y = X[:, :TRUE].sum(1) + rng.standard_normal(150)
    problem = sj.Problem(sj.losses.SquaredLoss(X, y), sj.penalties.L1(1.0))
    top = float(sj.lambda_max(problem))
    candidates = jax.vmap(sj.penalties.L1)(np.geomspace(top, top / 4, 12))
    weaker = jax.vmap(sj.penalties.L1)(np.geomspace(top, top / 40, 12))
    stable = sj.stability_selection(problem, candidates, num_subsamples=40, threshold=0.8)
    validated = sj.cross_validate(problem, weaker, folds=5, refit=True)
    assert bool(stable.converged.all()) and bool(validated.converged.all())
    chosen = np.flatnonzero(stable.selected)
    kept = np.flatnonzero(validated.solution.params)
    print(f"stability selection: {chosen.tolist()}")
    print(f"  of noise features at most {float(stable.bound):.1f} are expected")
    print(f"cross-validation: {len(kept)} features, {np.sum(kept < TRUE)} of the {TRUE} that matter")
    best = np.asarray(stable.frequencies.max(0), float)
    print(f"frequencies of those that matter: {best[:TRUE].round(2).tolist()}")
    print(f"five largest of the others: {np.sort(best[TRUE:])[-5:].round(2).tolist()}")


if __name__ == "__main__":
    main()
