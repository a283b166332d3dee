"""Speed: schedules, one against the rest beside SVM-RFE, and growth."""

import time
from pathlib import Path

import numpy as np
from harness.data import load_sparse
from harness.jobs import fresh_processes
from harness.timing import peak_mb, timed
from scipy import sparse

from papers.multivariate.methods import LOSS, TOL, eliminate, signs, trade_off, weigh
from sparsejax.models import multivariate as mv

SIZES = ((10**3, 10**4), (10**4, 10**4), (10**5, 10**4), (10**4, 10**5), (10**4, 10**6), (10**5, 10**6))


def run_schedules(path: Path) -> dict:
    """F1, B = 20, C/n = 0.01, gap 3e-3 on basehock, by schedule."""
    X, y = load_sparse(path, "basehock")
    (X,), y, rows = weigh(X), signs(y, y.max()), []
    for schedule in ("interleaved", "two-layer", "printed"):
        start = time.perf_counter()
        model = mv.fit(
            X, y, measure=mv.f_beta(), budget=20, C=0.01 * len(y), tol=3e-3, schedule=schedule, maxiter=5000
        )
        row = {"schedule": schedule, "seconds": time.perf_counter() - start}
        row |= {"masters": int(model.num_iters), "outer": model.report.num_outer}
        row |= {"oracle calls": model.report.num_oracle_calls}
        row |= {f"{k} s": v for k, v in model.report.seconds.items()}
        row |= {"objective": float(model.objective), "gap": float(model.gap)}
        rows.append(row | {"features": len(model.selected)})
    return {"rows": rows}


def run_newsgroups(path: Path, workers: int) -> dict:
    """All 20 classes at B = 100, and SVM-RFE to as many features, on as many processes."""
    X, y = load_sparse(path, "newsgroups20_full")
    (X,) = weigh(X)
    rows = []
    for c in (0.001, 0.01):
        start = time.perf_counter()
        model = mv.fit_one_vs_rest(
            X, y, measure=mv.f_beta(), budget=100, C=c * len(y), tol=TOL, eps_delta=LOSS, workers=workers
        )
        seconds = time.perf_counter() - start
        counts = [len(m.selected) for m in model.models]
        rows.append({
            "method": f"ours, C/n = {c:g}", "seconds": seconds, "features": float(np.mean(counts)),
            "gap": max(float(m.gap) for m in model.models),
            "converged": sum(bool(m.converged) for m in model.models),
            "masters": float(np.mean([int(m.num_iters) for m in model.models])),
        })  # fmt: skip
    start = time.perf_counter()
    with fresh_processes(workers) as pool:
        classes = zip(model.classes, counts, strict=True)
        for running in [pool.submit(_eliminate_class, X, y, k, n) for k, n in classes]:
            running.result()
    seconds = time.perf_counter() - start
    rows.append({"method": "SVM-RFE (C = 1)", "seconds": seconds, "features": float(np.mean(counts))})
    return {"workers": workers, "rows": rows}


def _eliminate_class(X: sparse.csr_array, y: np.ndarray, label: int, count: int) -> None:
    eliminate(X, signs(y, label), 1.0, False, [count])


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
    size, before = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / 2**20, peak_mb()
    C = 0.01 * trade_off(n) * n
    found = timed(lambda: mv.fit(X, y, measure=mv.f_beta(), budget=20, C=C, tol=TOL, maxiter=1000))
    model, peak = found.result, peak_mb()
    row = {"n": n, "m": m, "nonzeros": X.nnz, "seconds": found.seconds}
    row |= {"masters": int(model.num_iters), "gap": float(model.gap), "features": len(model.selected)}
    row |= {f"{name} s": v for name, v in model.report.seconds.items()}
    memory = {"X MB": size, "before MB": before, "peak MB": peak, "peak / X": (size + peak - before) / size}
    return row | memory
