"""Figure 2: the error of selected features."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import figures
from harness.figures import Style, curve
from harness.tables import table

import sparsejax as sj
from papers.aaai16.sets import dataset, describe, grouping, pairs_of, size, standardise_rows

PREFIX, POINTS = 200, 30  # the paper's axis ends at 200
SHOWN = (5, 10, 20, 50, 100, 200)
PRINTED, COVERED = "exclusive", "exclusive, covered"


# ---------------------------------------------------------------- selections and their error


def greedy(X: np.ndarray, Y: np.ndarray, count: int) -> np.ndarray:
    """Orthogonal least squares: the feature that lowers the residual most, one after the other."""
    X, C, square = X.copy(), X.T @ Y, (X**2).sum(0)
    order: list[int] = []
    first = square.copy()
    for _ in range(count):
        usable = square > 1e-10 * first
        gain = np.where(usable, (C**2).sum(1) / np.where(usable, square, 1), -1.0)
        gain[order] = -2
        best = int(np.argmax(gain))
        if gain[best] < 0:
            break
        order.append(best)
        q = X[:, best] / np.sqrt(square[best])
        along = q @ X
        C -= np.outer(along, q @ Y)  # the residual of Y, by that of X: what is left of X is orthogonal to q
        X -= np.outer(q, along)
        square = (X**2).sum(0)
    return np.array(order)


class Measure:
    """J and mean absolute correlation of selections, compiled for few lengths: zero columns fill them up."""

    def __init__(self, X: np.ndarray, Y: np.ndarray):
        self.d, self.Y = X.shape[1], jnp.asarray(Y)
        self.X = jnp.asarray(np.hstack([X, np.zeros_like(X)]))

    def filled(self, selected: np.ndarray) -> np.ndarray:
        """With empty columns, up to a power of 2."""
        length = min(self.d, max(64, 1 << (len(selected) - 1).bit_length()))
        return np.concatenate([selected, self.d + np.arange(length - len(selected))])

    def correlation(self, selected: np.ndarray) -> float | None:
        """None of a single feature."""
        value = float(sj.metrics.mean_abs_correlation(self.X, self.filled(selected)))
        return None if np.isnan(value) else value

    def errors(self, order: np.ndarray) -> np.ndarray:
        """J of the first 1, 2, ... of a ranking."""
        return np.asarray(sj.metrics.selection_error(self.X, self.Y, self.filled(order)))[: len(order)]

    def of_supports(self, supports: list[np.ndarray]) -> dict:
        """The curve of selections of several sizes."""
        return {
            "r": [len(s) for s in supports],
            "error": [float(self.errors(s)[-1]) for s in supports],
            "correlation": [self.correlation(s) for s in supports],
        }

    def of_ranking(self, order: np.ndarray) -> dict:
        """The curve of the first features of a ranking."""
        r, J = thinned(len(order)), self.errors(order)
        return {
            "r": r.tolist(),
            "error": J[r - 1].tolist(),
            "correlation": [self.correlation(order[:m]) for m in r],
        }

    def best_strength(self, norms: np.ndarray, last: int) -> dict:
        """The least error over the strengths of a path, for each number of features."""
        rows = [self.errors(ranking(w, last)) for w in norms if (w > 0).any()]
        errors = np.min([np.pad(J, (0, last - len(J)), constant_values=np.inf) for J in rows], axis=0)
        r = thinned(last)
        return {"r": r.tolist(), "error": errors[r - 1].tolist(), "correlation": [None] * len(r)}


def ranking(norms: np.ndarray, last: int) -> np.ndarray:
    """Features by the norm of their rows, so many at most, none that is zero."""
    return np.argsort(-norms, kind="stable")[: min(last, int((norms > 0).sum()))]


def thinned(last: int, first: int = 1) -> np.ndarray:
    """About POINTS numbers from first to last, evenly by their logarithm, with those that tables show."""
    r = np.geomspace(first, last, POINTS).round().astype(int)
    return np.union1d(r, [m for m in SHOWN if first <= m <= last])


def supports_of(norms: np.ndarray) -> list[np.ndarray]:
    """Supports along a path (strengths, d), the strongest of each size, thinned out."""
    sizes = (norms > 0).sum(1)
    distinct, at = np.unique(sizes, return_index=True)
    at = at[distinct > 0]
    distinct = distinct[distinct > 0]
    if len(distinct) > POINTS:
        wanted = thinned(distinct[-1], distinct[0])
        at = at[np.unique([np.argmin(abs(np.log(distinct / r))) for r in wanted])]
    return [np.flatnonzero(norms[i]) for i in at]


# ---------------------------------------------------------------- paths, and a set's curves


def path_norms(problem: sj.Problem, penalties: sj.Penalty, tol: float) -> tuple[np.ndarray, dict]:
    """Row norms along a warm path, (strengths, d), and how it went."""
    start = time.perf_counter()
    solution = sj.path(problem, penalties, mode="warm", tol=tol, maxiter=5000)
    norms = np.linalg.norm(np.asarray(solution.params), axis=2)
    about = {"gap": float(solution.gap.max()), "iterations": int(solution.num_iters.sum())}
    return norms, about | {"seconds": time.perf_counter() - start}


def l21_norms(loss: sj.losses.SquaredLoss) -> tuple[np.ndarray, dict]:
    """From the strength that empties W."""
    problem = sj.Problem(loss, sj.penalties.L21(1.0))
    top = float(sj.lambda_max(problem))
    strengths = np.geomspace(top, top / 300, 41)[1:]
    return path_norms(problem, jax.vmap(sj.penalties.L21)(strengths), 1e-6)


def exclusive_norms(loss: sj.losses.SquaredLoss, lists: list[list[int]]) -> tuple[np.ndarray, dict]:
    """Over six decades, relative to the mean number of groups of a feature."""
    d = loss.params_shape[0]
    groups = sj.groups.from_lists(lists, d)
    make = lambda alpha: sj.penalties.ExclusiveGroupL21(alpha, groups)
    strengths = np.geomspace(1e3, 1e-3, 40) * d / len(groups.members)
    return path_norms(sj.Problem(loss, make(1.0)), jax.vmap(make)(strengths), 1e-8)


def run(path: Path, name: str) -> dict:
    """Every curve of one set."""
    X, Y = dataset(path, name)
    X, varies = standardise_rows(X, slice(None))
    X, Y = X[:, varies], Y - Y.mean(0)
    pairs = pairs_of(X)
    alone = [[int(i)] for i in pairs.free(X.shape[1])]
    out = describe(*X.shape, Y.shape[1], pairs, len(alone))
    print(f"{name}: {out}", flush=True)

    loss = sj.losses.SquaredLoss(X, Y)
    found = {"l2,1": l21_norms(loss), PRINTED: exclusive_norms(loss, pairs.lists)}
    out["paths"] = {key: about for key, (_, about) in found.items()}
    found[COVERED] = found[PRINTED]
    if alone:
        found[COVERED] = exclusive_norms(loss, pairs.lists + alone)
        out["paths"][COVERED] = found[COVERED][1]

    norms = {key: values for key, (values, _) in found.items()}
    sizes = {key: (values > 0).sum(1) for key, values in norms.items()}
    fewest = int(sizes[PRINTED].min())
    out |= {"fewest": fewest, "fewest, covered": int(sizes[COVERED].min())}
    start, measure = time.perf_counter(), Measure(X, Y)
    out["curves"] = curves(measure, norms, sizes, min(PREFIX, fewest))
    out["curves"]["greedy"] = measure.of_ranking(greedy(X, Y, min(PREFIX, X.shape[1])))
    return out | {"measuring seconds": time.perf_counter() - start}


def curves(measure: Measure, norms: dict, sizes: dict, last: int) -> dict:
    """What the paths select: supports, and rankings by norm of so many features at most."""
    weakest = {key: len(m) - 1 - int(np.argmin(m[::-1])) for key, m in sizes.items()}
    weakest["l2,1"] = int(np.argmin(abs(sizes["l2,1"] - sizes[PRINTED].min())))
    out = {f"{key}, supports": measure.of_supports(supports_of(norms[key])) for key in ("l2,1", PRINTED)}
    for key in ("l2,1", PRINTED, COVERED):
        out[f"{key}, by norm"] = measure.of_ranking(ranking(norms[key][weakest[key]], last))
    for key in ("l2,1", COVERED):
        out[f"{key}, by norm, best strength"] = measure.best_strength(norms[key], last)
    return out


# ---------------------------------------------------------------- tables and figure


def at(curve: dict, r: Any, what: str = "error") -> np.ndarray:
    """A curve at numbers of features, NaN outside its ends; linear between its points."""
    known = [i for i, value in enumerate(curve[what]) if value is not None]
    if not known:
        return np.full(np.shape(r), np.nan)
    x, y = np.array(curve["r"])[known], np.array(curve[what], dtype=float)[known]
    return np.interp(r, x, y, left=np.nan, right=np.nan)


def error_table(name: str, result: dict) -> str:
    """J and, in brackets, the mean absolute correlation."""
    shown = sorted({*(r for r in SHOWN if r <= result["d"]), result["fewest"]})

    def cell(curve: dict, r: int) -> str:
        J, c = float(at(curve, r)), float(at(curve, r, "correlation"))
        return "-" if np.isnan(J) else f"{J:.3f}" + ("" if np.isnan(c) else f" ({c:.2f})")

    rows = ((label, *(cell(curve, r) for r in shown)) for label, curve in result["curves"].items())
    title = (
        f"**{name}** ({size(result)}; {grouping(result)}; "
        f"fewest nonzero rows {result['fewest']}, covered {result['fewest, covered']})\n\n"
    )
    return title + table(("J (mean correlation) at r =", *shown), rows)


AGAINST = (
    (f"{PRINTED}, supports", "l2,1, supports"),
    (f"{PRINTED}, by norm", "l2,1, supports"),
    (f"{COVERED}, by norm", "l2,1, supports"),
    (f"{COVERED}, by norm", "l2,1, by norm"),
    (f"{COVERED}, by norm, best strength", "l2,1, by norm, best strength"),
    (f"{COVERED}, by norm, best strength", "l2,1, supports"),
    ("l2,1, supports", "greedy"),
)


def summary(results: dict) -> str:
    """At what share of the r the exclusive group l2,1 has the smaller error."""

    def cell(curves: dict, a: str, b: str) -> str:
        difference = np.array(curves[a]["error"]) - at(curves[b], curves[a]["r"])
        difference = difference[np.isfinite(difference)]
        if not difference.size:
            return "-"
        return f"{100 * np.mean(difference < -1e-9):.0f} %, {difference.mean():+.3f}"

    rows = (
        (name, result["d"], result["fewest"], *(cell(result["curves"], a, b) for a, b in AGAINST))
        for name, result in results.items()
    )
    title = (
        "Share of r at which the first has the smaller J; mean difference of J, first less second (negative: "
        "the first is better); at the r of the first, which are nearly even by logarithm\n\n"
    )
    return title + table(("data", "features", "fewest rows", *(f"{a} : {b}" for a, b in AGAINST)), rows)


STYLE = {
    "l2,1, supports": Style(figures.BLUE, "s"),
    f"{PRINTED}, supports": Style(figures.RED, "o"),
    "l2,1, by norm": Style(figures.SKY, "x", "--"),
    f"{PRINTED}, by norm": Style(figures.GREY, "v", "--"),
    f"{COVERED}, by norm": Style(figures.ORANGE, "^", "--"),
    f"{COVERED}, by norm, best strength": Style(figures.PINK, ".", ":"),
    "greedy": Style(figures.BLACK),
}


def draw(results: dict, what: str, label: str, path: Path) -> None:
    """A curve of all sets, one place at least left for the legend."""
    across = min(4, len(results) + 1)
    figure, axes = figures.panels(len(results) + 1, across, (3.3, 3.1), layout="constrained")
    for axis, (name, result) in zip(axes, results.items(), strict=False):
        for key, style in STYLE.items():
            found = result["curves"][key]
            values = np.array(found[what], dtype=float)
            if not np.isnan(values).all():
                curve(axis, found["r"], values, style, key)
        ticks = [m for m in (1, *SHOWN, 500, 1000) if m <= result["d"]]
        axis.set_xscale("log")
        axis.set_xticks(ticks, [str(m) for m in ticks])
        axis.minorticks_off()
        axis.axvline(result["fewest"], color="0.7", linewidth=0.8, zorder=0)
        axis.set_title(f"{name}  ({size(result).replace(' = ', '=')})", fontsize=10)
        axis.grid(alpha=0.25)
    figures.legend_in_free_panel(axes, len(results))
    line = "line: fewest nonzero rows of the exclusive group l2,1"
    figure.supxlabel(f"selected features r ({line})", fontsize=11)
    figure.supylabel(label, fontsize=11)
    figure.savefig(path, dpi=110)


def report(results: dict, folder: Path) -> list[str]:
    """Tables; figures into the folder."""
    draw(results, "error", "selection error J", folder / "aaai16_error.png")
    draw(results, "correlation", "mean |correlation| of the selected", folder / "aaai16_correlation.png")
    tables = [error_table(name, result) for name, result in results.items()]
    return ["## Selection error (Figure 2)\n", summary(results), *tables]
