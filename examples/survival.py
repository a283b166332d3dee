"""Which measurements tell how long until an event? Cox's model, chosen by folds.

Simulated patients, of whom some were only seen until a time: 5 of 60 correlated measurements matter. Prints a
table and writes ``survival.png`` into the current directory. Run it with ``python examples/survival.py``; it
takes half a minute, most of it compilation.
"""

import matplotlib

matplotlib.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np

import sparsejax as sj
from sparsejax import plots

PATIENTS, MEASUREMENTS, STRENGTHS = 400, 60, 25
TRUTH = {3: 1.0, 12: -0.8, 25: 0.6, 38: -0.5, 51: 0.4}
ROW = "{:<34} {:>8} {:>6} {:>8} {:>12}"


def simulate(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measurements, times, and whether the event was seen at them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, MEASUREMENTS)) + 0.5 * rng.standard_normal((n, 1))
    risk = X[:, list(TRUTH)] @ np.array(list(TRUTH.values()))
    until_event = rng.exponential(np.exp(-risk))
    until_lost = rng.exponential(1.5, n)
    return X, np.minimum(until_event, until_lost), until_event <= until_lost


def main() -> None:
    """Cross-validate, fit, print the table, draw the picture."""
    X, time, event = simulate(PATIENTS, seed=0)
    X_new, time_new, event_new = simulate(PATIENTS, seed=1)
    loss = sj.losses.CoxLoss(X, time, event)
    top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L1(1.0))))
    strengths = np.geomspace(top, top / 50, STRENGTHS)
    problem, candidates = sj.Problem(loss, sj.penalties.L1(top)), jax.vmap(sj.penalties.L1)(strengths)

    # One compiled call each: all strengths on all folds, and all strengths on all patients.
    validated = sj.cross_validate(problem, candidates, folds=5)
    path = sj.path(problem, candidates)
    assert bool(validated.converged.all()) and bool(path.converged.all())

    print(
        f"{PATIENTS} patients, {event.sum()} events, {MEASUREMENTS} measurements, {len(TRUTH)} that matter\n"
    )
    print(ROW.format("strength", "", "kept", "of them", "concordance"))
    W = np.asarray(path.params)
    choices = {
        "least held-out loss": int(validated.index),
        "sparsest within one standard error": int(validated.index_1se),
        "smallest of the path": STRENGTHS - 1,
    }
    for name, i in choices.items():
        kept = np.flatnonzero(W[i])
        found = len(set(kept) & set(TRUTH))
        score = float(sj.metrics.concordance_index(time_new, event_new, X_new @ W[i]))
        print(ROW.format(name, f"{strengths[i]:.2g}", len(kept), f"{found} of {len(TRUTH)}", f"{score:.3f}"))
    print(f"\nlargest duality gap of the path: {float(path.gap.max()):.0e}")
    print("wrote", draw(strengths / top, validated, path))


def draw(x: np.ndarray, validated: sj.CrossValidation, path: sj.Solution) -> str:
    """Held-out loss, and coefficients along the path."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    plots.cross_validation(validated, x, ax=left)
    plots.path(path, x, chosen=validated, ax=right)
    for weight in TRUTH.values():
        right.axhline(weight, color="0.5", linewidth=0.8, linestyle=":")
    right.set_ylabel("coefficient (dotted: the truth)")
    for ax in (left, right):
        ax.set_xlabel("strength / lambda_max")
    fig.savefig("survival.png", dpi=130)
    return "survival.png"


if __name__ == "__main__":
    main()
