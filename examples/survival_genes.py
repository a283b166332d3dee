"""Which genes tell how long patients stay free of metastases? Beside Coxnet.

The breast cancer data of scikit-survival (Desmedt et al., 2007) have 198 patients, 51 events, 76 genes and
some clinical values. The script holds out a tenth of the patients, ten times. Folds of the others choose the
strength by three rules: least held-out loss, sparsest model within one standard error of that loss, greatest
held-out concordance. Coxnet uses the third rule. The concordance of the held-out tenth judges all models.
Then the script names the genes that most halves of the patients select. Prints a table and writes
``survival_genes.png`` into the current directory. Run it with ``python examples/survival_genes.py``, after
``python -m pip install scikit-survival``; it takes a minute, a part of it compilation.
"""

import warnings

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj
from sparsejax import plots

jax.config.update("jax_enable_x64", True)

STRENGTHS, FOLDS, OUTER = 25, 5, 10
ROW = "{:<44} {:>6} {:>16}"


def patients() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Standardised columns, times, events, and the names of the columns."""
    import pandas as pd  # noqa: PLC0415
    from sksurv.datasets import load_breast_cancer  # noqa: PLC0415

    frame, y = load_breast_cancer()
    frame = pd.get_dummies(frame, drop_first=True).astype(float)
    frame = frame.loc[:, frame.std() > 0]
    X = ((frame - frame.mean()) / frame.std(ddof=0)).to_numpy()
    event, time = y.dtype.names
    return X, y[time].astype(float), y[event], list(frame.columns)


def in_folds(event: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The fold of each patient, as many events in each."""
    rng = np.random.default_rng(seed)
    folds = np.empty(len(event), int)
    for group in (event, ~event):
        folds[rng.permutation(np.flatnonzero(group))] = np.arange(group.sum()) % count
    return folds


def concordance(w: np.ndarray, data: tuple[np.ndarray, ...], rows: np.ndarray) -> float:
    """The concordance index of the patients in ``rows``."""
    X, time, event = data
    return float(sj.metrics.concordance_index(time[rows], event[rows], X[rows] @ w))


def coxnet(
    data: tuple[np.ndarray, ...], train: np.ndarray, folds: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Coxnet's coefficients at the strength of the largest concordance of the same folds."""
    from sksurv.linear_model import CoxnetSurvivalAnalysis  # noqa: PLC0415

    X, time, event = data
    y = np.array(list(zip(event, time, strict=True)), [("event", bool), ("time", float)])
    score = np.zeros(len(alphas))
    make = lambda rows: CoxnetSurvivalAnalysis(l1_ratio=1.0, alphas=alphas).fit(X[rows], y[rows]).coef_.T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fold in range(FOLDS):
            outside = train & (folds == fold)
            W = make(train & (folds != fold))
            score += [concordance(w, data, outside) for w in W]
        return make(train)[score.argmax()]


def held_out(data: tuple[np.ndarray, ...], problem: sj.Problem, strengths: np.ndarray) -> None:
    """The table: the strength is chosen without the patients on whom it is judged."""
    event = data[2]
    outer, found = in_folds(event, OUTER, seed=1), {}
    candidates = jax.vmap(sj.penalties.L1)(strengths)
    for number in range(OUTER):
        train, folds = outer != number, in_folds(event, FOLDS, seed=2 + number)
        # Patients who are left out have weight 0: one program for all.
        some = problem.replace(smooth=problem.smooth.reweighted(train * (len(train) / train.sum())))
        chosen = sj.cross_validate(some, candidates, folds=folds)
        by_score = sj.cross_validate(some, candidates, folds=folds, scoring="concordance")
        path = sj.path(some, candidates)
        assert bool(chosen.converged.all()) and bool(path.converged.all())
        fits = {
            "least held-out loss": np.asarray(path.params[chosen.index]),
            "sparsest within one standard error": np.asarray(path.params[chosen.index_1se]),
            "greatest held-out concordance": np.asarray(path.params[by_score.index]),
            "Coxnet, greatest held-out concordance": coxnet(data, train, folds, strengths),
        }
        for name, w in fits.items():
            found.setdefault(name, []).append((np.count_nonzero(w), concordance(w, data, ~train)))
    print(ROW.format(f"{OUTER} times a tenth held out", "kept", "concordance"))
    for name, results in found.items():
        kept, scores = np.transpose(results)
        error = scores.std(ddof=1) / OUTER**0.5
        print(ROW.format(name, f"{kept.mean():.1f}", f"{scores.mean():.3f} +- {error:.3f}"))


def main() -> None:
    """Choose, judge, draw."""
    try:
        *data, names = patients()
    except ImportError:
        print("These patients come with scikit-survival: python -m pip install scikit-survival")
        return
    X, time, event = data
    print(f"{len(time)} patients, {event.sum()} events, {X.shape[1]} columns\n")
    problem = sj.Problem(sj.losses.CoxLoss(X, time, event, weights=np.ones(len(time))), sj.penalties.L1(1.0))
    top = float(sj.lambda_max(problem))
    strengths = np.geomspace(top, top / 10, STRENGTHS)
    held_out(tuple(data), problem, strengths)

    candidates = jax.vmap(sj.penalties.L1)(strengths)
    validated = sj.cross_validate(problem, candidates, folds=in_folds(event, FOLDS, seed=0))
    path = sj.path(problem, candidates)
    stable = sj.stability_selection(problem, jax.vmap(sj.penalties.L1)(strengths[:10]), num_subsamples=50)
    order = np.argsort(-np.asarray(stable.frequencies).max(axis=0))[:8]
    print("\nselected on the largest share of halves of the patients:")
    print(", ".join(f"{names[j]} {float(stable.frequencies[:, j].max()):.0%}" for j in order))

    fig, axes = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    plots.cross_validation(validated, strengths / top, ax=axes[0])
    plots.path(path, strengths / top, chosen=validated, feature_names=names, ax=axes[1])
    plots.stability(stable, strengths[:10] / top, feature_names=names, ax=axes[2])
    for ax in axes:
        ax.set_xlabel("strength / lambda_max")
    fig.savefig("survival_genes.png", dpi=130)
    print("\nwrote survival_genes.png")


if __name__ == "__main__":
    main()
