"""Figure 1: the objective by iteration of each algorithm."""

import time
from functools import partial
from pathlib import Path

import numpy as np
from harness import figures
from harness.data import one_hot, standardise

import sparsejax as sj
from papers.ijcai19.rankings import SEED, load_cut
from sparsejax import plots
from sparsejax.solution import History

HISTORY = 300


def run(path: Path, name: str) -> dict:
    """Objectives by iteration of each algorithm, and the certified optimum."""
    X, y = load_cut(path, name)
    loss = sj.losses.SquaredLoss(standardise(X)[0], one_hot(y), scale=1.0, intercept=True)
    problem = sj.Problem(loss, sj.penalties.ExclusiveL21(1.0, 1.0))
    random = 0.01 * np.random.default_rng(SEED).standard_normal(loss.params_shape)
    recorded = {"maxiter": HISTORY, "history": HISTORY}
    printed = partial(sj.alm, problem, faithful=True, tol=0, **recorded)
    runs = {
        "paper's ALM, from 0": printed,
        "paper's ALM, from N(0, 0.01²)": partial(printed, random),
        "ADMM": partial(sj.admm, problem, tol=1e-12, **recorded),
        "FISTA": partial(sj.fista, problem, tol=1e-12, **recorded),
    }
    optimum = sj.solve(problem, tol=1e-10, maxiter=50_000)
    out = {"optimum": float(optimum.objective), "gap": float(optimum.gap), "runs": {}}
    for label, call in runs.items():
        start = time.perf_counter()
        solution = call()
        objective = np.asarray(solution.history.objective)
        excess = objective[np.isfinite(objective)] / out["optimum"] - 1
        out["runs"][label] = {
            "excess": excess.tolist(),
            "iterations": int(solution.num_iters),
            "message": solution.message,
        }
        seconds = time.perf_counter() - start
        print(f"{name}, {label}: {seconds:.0f} s, excess {excess[-1]:.1e}", flush=True)
    return out


def draw(results: dict, path: Path) -> None:
    """Relative excess over the optimum by iteration, a panel a set."""
    figure, axes = figures.panels(len(results), len(results), (3.3, 3.3))
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        runs = {label: np.array(found["excess"]) for label, found in result["runs"].items()}
        histories = {label: History(1 + excess, np.nan * excess) for label, excess in runs.items()}
        plots.convergence(histories, "objective", optimum=1.0, ax=axis)
        axis.get_legend().remove()
        axis.set(title=name, ylim=(5e-11, 1e2), ylabel="")
        if axis is not axes[0]:
            axis.tick_params(labelleft=False)
    axes[0].set_ylabel("relative excess over the optimum")
    figures.save_with_legend_below(figure, 0.08, path)
