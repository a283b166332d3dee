r"""The experiments of Mao & Tsang (features for multivariate performance measures), on data of their kind.

``python benchmarks/multivariate.py --data DIR --out DIR [--only accuracy|bags|speed|sensitivity|report]
[--sets basehock,...] [--workers 2]``

**Accuracy (the paper's Table 2, Fig. 5 and 7 in kind).** Text and web sets, stratified split 60 : 40
(``SEEDS`` times; newsgroups20_full once). Counts become log(1 + count) times the inverse document frequency
of the training rows; rows have length 1. More than two classes: each against the rest, macro averages; every
class is one job. Measures on the test part: F1 at decision 0 and at the threshold tuned on training scores,
PRBEP (precision of the p best), Rec@2p (recall among the 2p best), p the positives of the test part.

* ours, trained for F1, PRBEP, Rec@2p and the Hamming loss (scale 2, the hinge loss), at each budget in
  ``BUDGETS``; relative gap 1e-2 or a tenth of a percent of the loss. C/n of ``GRID`` times (2000/n)^2
  (``GRID_HAMMING`` as it is) is chosen at B = 50 by its measure in a quarter of the training part held out
  (F1 after Hamming), then kept.
* l1-SVM (LIBLINEAR, squared hinge, with intercept): C by bisection, so that as many features have a weight
  as in our F1 model of that budget: within a twentieth, or as nearly as 12 fits get; seconds are those of all
  budgets together.
* SVM-RFE (LIBLINEAR): the fifth of smallest |w| goes, until as many are left as our F1 model of that budget
  has; C of ``GRID_SVM`` by F1 in the held-out quarter, on all features.
* SVM on all features, and ours with B = m for F1, PRBEP and Rec@2p (SVMperf, no features selected).
* The SVMs twice: plain and with class weights (``class_weight="balanced"``).

No gain is a gain of the method unless it stands against the class-weighted and threshold-tuned baselines.

**Bags (Fig. 5).** musk1, elephant, fox: 10-fold; corel: the 7 named categories against the rest, 60 : 40.
Instances standardised by the training bags (constant columns left out), sigma = median_bandwidth. Ours for
F1 and Hamming, C/n by a held-out quarter; MILES: l1-SVM on the same embedding, C likewise; SVM-RFE and l1-SVM
to as many instances as our F1 model of each budget; all three plain and class-weighted.

**Speed.** The basehock case by schedule; newsgroups20_full one against the rest at B = 100 beside SVM-RFE to
as many features, on the same processes; growth on generated sparse rows of 50 nonzeros (n, m), 20 of them
informative, with the peak memory of a process of its own.

**Sensitivity (Fig. 1).** basehock: F1 and number of features by C and B.

Every job writes its own JSON file in ``--out`` when it ends and is not run again if that is there.
"""

import argparse
import functools
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
from _data import folder
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.svm import LinearSVC

from sparsejax.models import mil
from sparsejax.models import multivariate as mv

SETS = ("basehock", "relathe", "cnae9", "w8a", "newsgroups20_full")
BAGS = ("musk1", "mil_elephant", "mil_fox", "mil_corel2000")
BUDGETS, BUDGETS_BAGS = (2, 5, 10, 50, 100, 150, 200, 250), (2, 5, 10, 20, 50, 100)
GRID, GRID_HAMMING, GRID_SVM = (0.01, 0.1, 1.0, 10.0), (0.05, 0.5, 5.0), (0.1, 1.0, 10.0)
SEEDS, LOSS, TOL = 3, 0.1, 1e-2
MEASURES = ("F1", "PRBEP", "Rec@2p", "Hamming")


# ---------------------------------------------------------------- data


def load_sparse(data: Path, name: str):
    """X (n, m) as sparse rows and y, as they are in the archive."""
    with np.load(data / f"{name}.npz") as f:
        indices = f["indices"].astype(np.int32)
        X = sparse.csr_array(
            (f["data"].astype(float), indices, f["indptr"]), shape=tuple(f["shape"].tolist())
        )
        return X, f["y"].astype(int)


def weigh(train, *others):
    """Log counts times the inverse document frequency of the training rows, rows of length 1."""
    frequency = np.bincount(train.indices, minlength=train.shape[1])
    idf = np.log(train.shape[0] / np.maximum(frequency, 1))
    out = []
    for X in (train, *others):
        A = sparse.csr_array((np.log1p(X.data) * idf[X.indices], X.indices, X.indptr), shape=X.shape)
        length = np.sqrt(np.asarray(A.multiply(A).sum(1)).ravel())
        out.append(sparse.csr_array(sparse.diags_array(1 / np.where(length > 0, length, 1)) @ A))
    return out


def signs(y, positive):
    return np.where(y == positive, 1, -1)


# ---------------------------------------------------------------- measures on the test part


def evaluate(scores, y, train_scores, train_y) -> dict:
    """F1 (decision 0, tuned threshold), PRBEP and Rec@2p, in percent."""
    threshold = mv.tune_threshold(mv.f_beta(), train_scores, train_y)
    order, p = np.argsort(-scores, kind="stable"), int((y == 1).sum())
    first = lambda k: float((y[order[:k]] == 1).sum())
    return {
        "F1": 100 * f1_score(y, np.where(scores > 0, 1, -1), zero_division=0),
        "F1 tuned": 100 * f1_score(y, np.where(scores > threshold, 1, -1), zero_division=0),
        "PRBEP": 100 * first(p) / p,
        "Rec@2p": 100 * first(min(2 * p, len(y))) / p,
    }


# ---------------------------------------------------------------- methods


def train_ours(X, y, kind: str, budget: float, c: float, init=None):
    p = int((y == 1).sum())
    measure = {
        "F1": mv.f_beta(),
        "PRBEP": mv.prbep(),
        "Rec@2p": mv.recall_at(min(2 * p, len(y))),
        "Hamming": mv.hamming(2.0),
    }[kind]
    # the Hamming loss is a sum over examples: a tenth of a percent of it is LOSS n / 50
    eps = LOSS * len(y) / 50 if kind == "Hamming" else LOSS
    c = c if kind == "Hamming" else c * _scale(len(y))
    return mv.fit(X, y, measure=measure, budget=budget, C=c * len(y), tol=TOL, eps_delta=eps, init=init)


def _scale(n: int) -> float:
    """C/n for the same trade-off as at 2000 examples: these losses are 100 at most, while scores add up."""
    return (2000 / n) ** 2


def choose(grid, train, score):
    """The value of the grid with the best score in a held-out part (the first, if tied)."""
    return max(grid, key=lambda c: score(train(c)))


def machine(C: float, weighted: bool, l1: bool = False):
    weight = "balanced" if weighted else None
    if l1:
        return LinearSVC(C=C, penalty="l1", dual=False, class_weight=weight, max_iter=2000, random_state=0)
    return LinearSVC(C=C, class_weight=weight, random_state=0)


def eliminate(X, y, C: float, weighted: bool, counts) -> dict:
    """SVM-RFE: (columns, machine) for each wanted count."""
    columns, found = np.arange(X.shape[1]), {}
    for target in sorted({min(c, X.shape[1]) for c in counts}, reverse=True):
        while True:
            fitted = machine(C, weighted).fit(X[:, columns], y)
            if len(columns) <= target:
                break
            keep = max(target, int(0.8 * len(columns)))
            columns = np.sort(columns[np.argsort(-np.abs(fitted.coef_[0]), kind="stable")[:keep]])
        found[target] = (columns, fitted)
    return found


def lassos(X, y, weighted: bool, counts) -> dict:
    """l1-SVM: for each wanted count the machine whose number of features is nearest, C by bisection."""

    @functools.cache
    def at(exponent):
        fitted = machine(10**exponent, weighted, l1=True).fit(X, y)
        return int((fitted.coef_ != 0).sum()), fitted

    found = {}
    for count in counts:
        low, high, tried = -4.0, 3.0, []
        for _ in range(12):
            middle = (low + high) / 2
            tried.append(at(middle))
            if abs(tried[-1][0] - count) <= 0.05 * count:
                break
            low, high = (middle, high) if tried[-1][0] < count else (low, middle)
        found[count] = min(tried, key=lambda t: abs(t[0] - count))[1]
    return found


def at_counts(X, y, C: float, weighted: bool, counts):
    """SVM-RFE and l1-SVM with as many features as counts has for each budget: columns, machine, its row."""
    start = time.perf_counter()
    nested = eliminate(X, y, C, weighted, counts.values())
    seconds = time.perf_counter() - start
    for budget, count in counts.items():
        columns, fitted = nested[min(count, X.shape[1])]
        row = {"method": "SVM-RFE", "budget": budget, "features": len(columns), "seconds": seconds, "c": C}
        yield columns, fitted, row
    start = time.perf_counter()
    machines = lassos(X, y, weighted, counts.values())
    seconds = time.perf_counter() - start
    for budget, count in counts.items():
        fitted = machines[count]
        features = (fitted.coef_ != 0).sum()
        yield (
            slice(None),
            fitted,
            {"method": "l1-SVM", "budget": budget, "features": features, "seconds": seconds},
        )


# ---------------------------------------------------------------- accuracy: one class of one split


def run_class(data: Path, name: str, seed: int, label: int) -> dict:
    X, y = load_sparse(data, name)
    fit, test = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=seed)
    A, T = weigh(X[fit], X[test])
    a, t = signs(y[fit], label), signs(y[test], label)
    part, held = train_test_split(np.arange(len(a)), test_size=0.25, stratify=a, random_state=seed)
    inner, outer = weigh(X[fit][part], X[fit][held])
    rows = []

    def record(method, trained, budget, features, scores, train_scores, seconds, **more):
        result = evaluate(scores, t, train_scores, a)
        rows.append(
            {"method": method, "trained": trained, "budget": budget, "features": int(features),
             "seconds": seconds, **result, **more}
        )  # fmt: skip

    counts = {}
    for kind in MEASURES:
        target = "F1" if kind == "Hamming" else kind

        def score(model, target=target):
            return evaluate(model.decision_function(outer), a[held], model.decision_function(inner), a[part])[
                target
            ]

        grid = GRID_HAMMING if kind == "Hamming" else GRID
        c = choose(grid, functools.partial(train_ours, inner, a[part], kind, 50), score)
        model = None
        for budget in (b for b in (*BUDGETS, A.shape[1]) if b <= A.shape[1]):
            if budget == A.shape[1] and kind == "Hamming":
                continue
            start = time.perf_counter()
            model = train_ours(A, a, kind, budget, c, model)
            seconds = time.perf_counter() - start
            features = len(model.selected)
            if kind == "F1" and budget in BUDGETS:
                counts[budget] = max(features, 1)
            record(
                "ours", kind, budget, features, model.decision_function(T), model.decision_function(A),
                seconds, c=c, gap=float(model.gap), status=int(model.status), masters=int(model.num_iters),
            )  # fmt: skip

    for weighted in (False, True):
        how = "weighted" if weighted else "plain"

        def score(fitted):
            return f1_score(a[held], fitted.predict(outer), zero_division=0)

        C = choose(GRID_SVM, lambda C, w=weighted: machine(C, w).fit(inner, a[part]), score)
        fitted = machine(C, weighted).fit(A, a)
        record(
            "SVM", how, None, A.shape[1], fitted.decision_function(T), fitted.decision_function(A), 0.0, c=C
        )
        for columns, fitted, row in at_counts(A, a, C, weighted, counts):
            scores, train_scores = (fitted.decision_function(Z[:, columns]) for Z in (T, A))
            record(trained=how, scores=scores, train_scores=train_scores, **row)
    return {"set": name, "seed": seed, "label": int(label), "n": len(a), "m": A.shape[1], "rows": rows}


# ---------------------------------------------------------------- bags: one class of one split


def take(X, ids, bags):
    """The instances of some bags, renumbered in their order."""
    number = np.full(ids.max() + 1, -1)
    number[bags] = np.arange(len(bags))
    inside = number[ids] >= 0
    return X[inside], number[ids[inside]]


def run_bags(data: Path, name: str, seed: int, label: int) -> dict:
    with np.load(data / f"{name}.npz") as f:
        X, ids, y = f["X"].astype(float), f["bag"].astype(int), signs(f["y"].astype(int), label)
    if name == "mil_corel2000":
        fit, test = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=seed)
    else:
        fit, test = list(StratifiedKFold(10, shuffle=True, random_state=0).split(y, y))[seed]
    A, a_ids = take(X, ids, fit)
    T, t_ids = take(X, ids, test)
    mean, deviation = A.mean(0), A.std(0)
    keep = deviation > 1e-9
    A, T = ((Z[:, keep] - mean[keep]) / deviation[keep] for Z in (A, T))
    a, t = y[fit], y[test]
    sigma = mil.median_bandwidth(A)
    S, U = (np.asarray(mil.embed(Z, i, A, sigma), float) for Z, i in ((A, a_ids), (T, t_ids)))
    part, held = train_test_split(np.arange(len(a)), test_size=0.25, stratify=a, random_state=seed)
    rows = []

    def record(method, trained, budget, features, model, seconds, columns=slice(None), **more):
        scores = model.decision_function(U[:, columns])
        result = evaluate(scores, t, model.decision_function(S[:, columns]), a)
        result["accuracy"] = 100 * float(np.mean((scores > 0) == (t == 1)))
        rows.append(
            {"method": method, "trained": trained, "budget": budget, "features": int(features),
             "seconds": seconds, **result, **more}
        )  # fmt: skip

    def score(model):
        return f1_score(a[held], model.predict(S[held]), zero_division=0)

    counts = {}
    for kind in ("F1", "Hamming"):
        grid = GRID_HAMMING if kind == "Hamming" else (1e-4, 1e-3, 1e-2, 0.1)
        c = choose(grid, functools.partial(train_ours, S[part], a[part], kind, 10), score)
        model = None
        for budget in BUDGETS_BAGS:
            start = time.perf_counter()
            model = train_ours(S, a, kind, budget, c, model)
            seconds = time.perf_counter() - start
            if kind == "F1":
                counts[budget] = max(len(model.selected), 1)
            record("ours", kind, budget, len(model.selected), model, seconds, c=c, gap=float(model.gap))
    for weighted in (False, True):
        how = "weighted" if weighted else "plain"
        C = choose(
            (0.1, 1.0, 10.0, 100.0), lambda C, w=weighted: machine(C, w, True).fit(S[part], a[part]), score
        )
        start = time.perf_counter()
        fitted = machine(C, weighted, True).fit(S, a)
        seconds = time.perf_counter() - start
        record("MILES", how, None, (fitted.coef_ != 0).sum(), fitted, seconds, c=C)
        C = choose(GRID_SVM, lambda C, w=weighted: machine(C, w).fit(S[part], a[part]), score)
        for columns, fitted, row in at_counts(S, a, C, weighted, counts):
            record(trained=how, model=fitted, columns=columns, **row)
    return {"set": name, "seed": seed, "label": int(label), "bags": len(y), "sigma": sigma, "rows": rows}


# ---------------------------------------------------------------- speed


def run_schedules(data: Path) -> dict:
    """F1, B = 20, C/n = 0.01, gap 3e-3 on basehock, by schedule."""
    X, y = load_sparse(data, "basehock")
    (X,), y, rows = weigh(X), signs(y, y.max()), []
    for schedule in ("interleaved", "two-layer", "printed"):
        start = time.perf_counter()
        model = mv.fit(
            X, y, measure=mv.f_beta(), budget=20, C=0.01 * len(y), tol=3e-3, schedule=schedule, maxiter=5000
        )
        row = {"schedule": schedule, "seconds": time.perf_counter() - start, "masters": int(model.num_iters)}
        row |= {"outer": model.report.num_outer, "oracle calls": model.report.num_oracle_calls}
        row |= {f"{k} s": v for k, v in model.report.seconds.items()}
        rows.append(
            row
            | {"objective": float(model.objective), "gap": float(model.gap), "features": len(model.selected)}
        )
    return {"rows": rows}


def _eliminate_class(X, y, label, count):
    eliminate(X, signs(y, label), 1.0, False, [count])


def run_newsgroups(data: Path, workers: int) -> dict:
    """All 20 classes at B = 100, and SVM-RFE to as many features, on as many processes."""
    X, y = load_sparse(data, "newsgroups20_full")
    (X,) = weigh(X)
    out = []
    for c in (0.001, 0.01):
        start = time.perf_counter()
        model = mv.fit_one_vs_rest(
            X, y, measure=mv.f_beta(), budget=100, C=c * len(y), tol=TOL, eps_delta=LOSS, workers=workers
        )
        seconds = time.perf_counter() - start
        counts = [len(m.selected) for m in model.models]
        out.append(
            {"method": f"ours, C/n = {c:g}", "seconds": seconds, "features": float(np.mean(counts)),
             "gap": max(float(m.gap) for m in model.models),
             "converged": sum(bool(m.converged) for m in model.models),
             "masters": float(np.mean([int(m.num_iters) for m in model.models]))}
        )  # fmt: skip
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        jobs = [pool.submit(_eliminate_class, X, y, k, n) for k, n in zip(model.classes, counts, strict=True)]
        for job in jobs:
            job.result()
    out.append(
        {
            "method": "SVM-RFE (C = 1)",
            "seconds": time.perf_counter() - start,
            "features": float(np.mean(counts)),
        }
    )
    return {"workers": workers, "rows": out}


def run_growth(n: int, m: int) -> dict:
    """One fit on generated rows of 50 nonzeros; run in a process of its own, for its peak memory."""
    rng = np.random.default_rng(0)
    k = 50
    columns = rng.integers(0, m, (n, k), dtype=np.int32)
    informative = rng.random((n, k)) < 0.2
    columns[informative] = rng.integers(0, 20, int(informative.sum()), dtype=np.int32)
    X = sparse.csr_array((rng.random(n * k), columns.ravel(), np.arange(0, n * k + 1, k)), shape=(n, m))
    X.sum_duplicates()
    score = X[:, :10].sum(1) - X[:, 10:20].sum(1) + rng.standard_normal(n)
    y = np.where(score > np.quantile(score, 0.8), 1, -1)
    size = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    model = mv.fit(X, y, measure=mv.f_beta(), budget=20, C=0.01 * _scale(n) * n, tol=TOL, maxiter=1000)
    row = {"n": n, "m": m, "nonzeros": X.nnz, "seconds": time.perf_counter() - start}
    row |= {"masters": int(model.num_iters), "gap": float(model.gap), "features": len(model.selected)}
    row |= {f"{name} s": v for name, v in model.report.seconds.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row | {
        "X MB": size,
        "before MB": before,
        "peak MB": peak,
        "peak / X": (size + peak - before) / size,
    }


def run_sensitivity(data: Path) -> dict:
    X, y = load_sparse(data, "basehock")
    fit, test = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=0)
    A, T = weigh(X[fit], X[test])
    a, t, rows = signs(y[fit], y.max()), signs(y[test], y.max()), []
    for c in (0.01, 0.1, 1.0, 10.0):
        model = None
        for budget in BUDGETS:
            start = time.perf_counter()
            model = train_ours(A, a, "F1", budget, c, model)
            result = evaluate(model.decision_function(T), t, model.decision_function(A), a)
            rows.append({"c": c, "budget": budget, "features": len(model.selected), "gap": float(model.gap),
                         "seconds": time.perf_counter() - start, **result})  # fmt: skip
    return {"rows": rows}


# ---------------------------------------------------------------- jobs


def job(out: Path, name: str, function, *arguments) -> dict:
    """The result of a job from its file, or by running it."""
    path = out / f"multivariate_{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    start = time.time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = function(*arguments)
    path.write_text(json.dumps(result, indent=1))
    print(f"{name}: {time.time() - start:.0f} s", flush=True)
    return result


def all_jobs(data: Path, out: Path, jobs, workers: int) -> None:
    jobs = [j for j in jobs if not (out / f"multivariate_{j[0]}.json").exists()]
    if workers == 1:
        for j in jobs:
            job(out, *j)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(job, out, *j) for j in jobs]:
            done.result()


def accuracy_jobs(data: Path, sets):
    for name in sets:
        _, y = load_sparse(data, name)
        labels = np.unique(y)
        labels = labels[-1:] if len(labels) == 2 else labels
        for seed in range(1 if name == "newsgroups20_full" else SEEDS):
            for label in labels.tolist():
                yield (f"accuracy_{name}_{seed}_{label}", run_class, data, name, seed, label)


def bag_jobs(data: Path, sets):
    for name in sets:
        corel = name == "mil_corel2000"
        for seed in range(SEEDS if corel else 10):
            for label in range(7) if corel else (1,):
                yield (f"bags_{name}_{seed}_{label}", run_bags, data, name, seed, label)


# ---------------------------------------------------------------- tables


def table(header, rows) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def collect(out: Path, pattern: str):
    """The number of jobs, and by method, training and budget their figures as arrays in the jobs' order."""
    jobs = [json.loads(p.read_text()) for p in sorted(out.glob(f"multivariate_{pattern}.json"))]
    groups: dict = {}
    for result in jobs:
        for row in result["rows"]:
            everything = row["method"] == "ours" and row["budget"] not in (*BUDGETS, *BUDGETS_BAGS)
            key = (row["method"], row["trained"], "m" if everything else row["budget"])
            for name, value in row.items():
                if isinstance(value, (int, float)):
                    groups.setdefault(key, {}).setdefault(name, []).append(value)
    return len(jobs), {k: {n: np.array(v) for n, v in g.items()} for k, g in groups.items()}


def with_tuned(g, *key) -> str:
    """Mean F1 at decision 0, and at the tuned threshold in brackets."""
    return f"{g[key]['F1'].mean():.1f} ({g[key]['F1 tuned'].mean():.1f})" if key in g else "-"


SVMS = [(m, w) for m in ("SVM-RFE", "l1-SVM") for w in ("plain", "weighted")]


def accuracy_table(g) -> str:
    """F1 (tuned) by budget, all methods at as many features; PRBEP of ours trained for it."""
    heads = [f"{m} {w}" if w == "weighted" else m for m, w in SVMS]
    rows, header = (
        [],
        ("B", "features", "ours F1", "ours Hamming", *heads, "PRBEP: ours", "SVM-RFE", "l1-SVM"),
    )
    prbep = lambda *key: f"{g[key]['PRBEP'].mean():.1f}" if key in g else "-"
    for budget in (b for b in BUDGETS if ("ours", "F1", b) in g):
        cells = [with_tuned(g, *key, budget) for key in (("ours", "F1"), ("ours", "Hamming"), *SVMS)]
        last = [prbep(*key, budget) for key in (("ours", "PRBEP"), ("SVM-RFE", "plain"), ("l1-SVM", "plain"))]
        rows.append((budget, f"{g['ours', 'F1', budget]['features'].mean():.0f}", *cells, *last))
    cells = [
        with_tuned(g, "ours", "F1", "m"),
        "-",
        *(with_tuned(g, "SVM", w, None) for w in ("plain", "weighted")),
    ]
    last = [prbep("ours", "PRBEP", "m"), prbep("SVM", "plain", None)]
    rows.append(("all", f"{g['SVM', 'plain', None]['features'].mean():.0f}", *cells, "-", "-", *last, "-"))
    return table(header, rows)


def table_2(g) -> str:
    """The paper's Table 2: at the largest budget.

    In brackets the jobs in which ours is above / below the row, with a star where a paired t-test over jobs
    tells them apart at 0.95.
    """
    from scipy.stats import ttest_rel  # noqa: PLC0415

    largest = max(b for m, t, b in g if (m, t) == ("ours", "F1") and b != "m")
    measures = {"F1": "F1", "F1 tuned": "F1", "Rec@2p": "Rec@2p", "PRBEP": "PRBEP"}  # trained for
    methods = {f"ours, B = {largest}": lambda kind: ("ours", kind, largest)}
    methods[f"ours Hamming, B = {largest}"] = lambda kind: ("ours", "Hamming", largest)
    methods["ours, B = m (SVMperf)"] = lambda kind: ("ours", kind, "m")
    for m, w in SVMS:
        methods[f"{m} {w}"] = lambda kind, m=m, w=w: (m, w, largest)
    for w in ("plain", "weighted"):
        methods[f"SVM {w}"] = lambda kind, w=w: ("SVM", w, None)
    rows = []
    for name, key in methods.items():
        cells = []
        for measure, kind in measures.items():
            ours, other = (g[k][measure] for k in (("ours", kind, largest), key(kind)))
            cell = f"{other.mean():.1f}"
            if name != f"ours, B = {largest}":
                star = "*" if len(ours) > 2 and ttest_rel(ours, other).pvalue < 0.05 else ""
                cell += f" ({(ours > other).sum()}/{(ours < other).sum()}){star}"
            cells.append(cell)
        counts = [g[k]["features"].mean() for k in dict.fromkeys(key(kind) for kind in measures.values())]
        rows.append((name, *cells, " / ".join(f"{c:.0f}" for c in counts)))
    return table(("", *measures, "features (F1 / Rec@2p / PRBEP)"), rows)


def bag_rows(name, jobs, g):
    """F1 (accuracy) of all methods at as many instances; MILES, whose C is chosen freely, once."""
    cell = lambda *key: f"{g[key]['F1'].mean():.1f} ({g[key]['accuracy'].mean():.1f})"
    free = [cell("MILES", w, None) for w in ("plain", "weighted")]
    free.append(f"{g['MILES', 'plain', None]['features'].mean():.0f}")
    for budget in (10, 100):
        cells = [cell(*key, budget) for key in (("ours", "F1"), ("ours", "Hamming"), *SVMS)]
        yield (name, jobs, budget, f"{g['ours', 'F1', budget]['features'].mean():.0f}", *cells, *free)
        name, jobs, free = "", "", [""] * 3


def report(out: Path) -> None:
    text = []
    for name in SETS:
        jobs, g = collect(out, f"accuracy_{name}_*")
        if jobs:
            text += [f"### {name} (means of {jobs} classes and splits)\n", accuracy_table(g), table_2(g)]
            figure(out / f"multivariate_{name}.png", {f"{name}: {c}": (g, c) for c in ("F1", "F1 tuned")}, 2)
    rows, panels = [], {}
    for name in BAGS:
        for label in range(7) if name == "mil_corel2000" else (1,):
            jobs, g = collect(out, f"bags_{name}_*_{label}")
            if jobs:
                panels[f"{name} {label}"] = (g, "F1")
                rows += bag_rows(f"{name} {label}", jobs, g)
    if rows:
        heads = ("ours F1", "ours Hamming", *(f"{m} {w}" for m, w in SVMS), "MILES", "MILES weighted", "its")
        text += ["### bags: F1 (accuracy)\n", table(("class", "splits", "B", "instances", *heads), rows)]
        figure(out / "multivariate_bags.png", panels, 5)
    for name in ("schedules", "newsgroups"):
        path = out / f"multivariate_{name}.json"
        if path.exists():
            rows = json.loads(path.read_text())["rows"]
            header = list(dict.fromkeys(k for row in rows for k in row))
            text += [f"### {name}\n", table(header, [[_shown(r.get(k, "-")) for k in header] for r in rows])]
    path = out / "multivariate_sensitivity.json"
    if path.exists():
        found = {(r["budget"], r["c"]): r for r in json.loads(path.read_text())["rows"]}
        cell = lambda r: f"{r['F1']:.1f} ({r['features']})"
        rows = [(b, *(cell(r) for (budget, _), r in found.items() if budget == b)) for b in BUDGETS]
        header = ("B", *(f"C/n = {c:g} (2000/n)^2" for c in dict.fromkeys(c for _, c in found)))
        text += ["### sensitivity on basehock: F1 (features)\n", table(header, rows)]
    growth = [json.loads(p.read_text()) for p in sorted(out.glob("multivariate_growth_*.json"))]
    if growth:
        header = list(growth[0])
        growth.sort(key=lambda r: (r["m"], r["n"]))
        text += ["### growth\n", table(header, [[_shown(r[k]) for k in header] for r in growth])]
    (out / "multivariate.md").write_text("\n".join(text))
    print("\n".join(text))


def _shown(value):
    return f"{value:.4g}" if isinstance(value, float) else value


def figure(path: Path, panels, columns: int) -> None:
    """A measure of each method by its number of features; a panel is (figures by method, measure)."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415

    rows = -(-len(panels) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(4 * columns + 2, 4 * rows), squeeze=False)
    for ax, (title, (g, measure)) in zip(axes.ravel(), panels.items(), strict=False):
        for method, trained in dict.fromkeys((m, t) for m, t, b in g if b not in ("m", None)):
            line = [v for (m, t, b), v in g.items() if (m, t) == (method, trained) and b not in ("m", None)]
            points = sorted((v["features"].mean(), v[measure].mean()) for v in line)
            style = {"ours": "-o", "SVM-RFE": "--s", "l1-SVM": ":^"}[method]
            ax.semilogx(*zip(*points, strict=True), style, ms=3, label=f"{method}, {trained}")
        ax.set(xlabel="features", title=title)
        ax.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    for ax in axes.ravel()[len(panels) :]:
        ax.axis("off")
    axes[0, 0].set_ylabel("test F1, %")
    axes[0, 0].legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("accuracy", "bags", "speed", "sensitivity", "report"))
    parser.add_argument("--sets", default="")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    data = folder(args.data) if args.only != "report" else Path()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [s for s in args.sets.split(",") if s]
    do = lambda part: args.only in (None, part)
    if do("speed"):
        job(args.out, "schedules", run_schedules, data)
        sizes = [
            (10**3, 10**4),
            (10**4, 10**4),
            (10**5, 10**4),
            (10**4, 10**5),
            (10**4, 10**6),
            (10**5, 10**6),
        ]
        for n, m in sizes:  # each in a fresh process: memory is that of one fit
            if not (args.out / f"multivariate_growth_{n}_{m}.json").exists():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    pool.submit(job, args.out, f"growth_{n}_{m}", run_growth, n, m).result()
        job(args.out, "newsgroups", run_newsgroups, data, args.workers)
    if do("sensitivity"):
        job(args.out, "sensitivity", run_sensitivity, data)
    if do("bags"):
        all_jobs(data, args.out, bag_jobs(data, [s for s in BAGS if not wanted or s in wanted]), args.workers)
    if do("accuracy"):
        sets = [s for s in SETS if not wanted or s in wanted]
        all_jobs(data, args.out, accuracy_jobs(data, sets), args.workers)
    report(args.out)


if __name__ == "__main__":
    sys.exit(main())
