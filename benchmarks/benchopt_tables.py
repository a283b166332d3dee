"""Tables of what `benchopt run` has written: seconds to a relative suboptimality of 1e-6.

    python benchmarks/benchopt_tables.py benchmark_lasso/outputs/sparsejax.parquet [more files]

Prints a markdown table a file. The relative suboptimality of a point is benchopt's, (F - F*) / (F0 - F*), for
each repetition, which may draw data of its own: F* is the least objective that any of the solvers has reached
there, F0 the first of the curve, at zero. A solver's time is that of its fastest point with at most 1e-6, the
median over repetitions, a dash if half of them have no such point. "peer / ours" is the time of the fastest
peer over ours, "left" the relative suboptimality of our best point, the worst over repetitions. How to run
the benchmarks: ``benchopt/README.md``.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from harness.tables import table

OURS = "sparsejax"
GOOD = 1e-6


def reached(runs: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Of each solver on one repetition: seconds of its fastest good point, nan if none; its suboptimality."""
    F = runs.objective_value
    F0 = F[runs.stop_val == runs.groupby("solver_name").stop_val.transform("first")].max()
    left = (F - F.min()) / (F0 - F.min())
    good = runs.time.where(left <= GOOD)
    return {name: (good[at].min(), left[at].min()) for name, at in runs.groupby("solver_name").groups.items()}


def row(runs: pd.DataFrame, solvers: list[str]) -> list[str]:
    """The cells of one data set and objective, after their names."""
    found = [reached(repetition) for _, repetition in runs.groupby("idx_rep")]
    times = pd.DataFrame([{name: seconds for name, (seconds, _) in of.items()} for of in found])
    seconds = times.reindex(columns=list({OURS, *solvers})).fillna(np.inf).median()
    cells = [f"{1e3 * seconds[name]:.3g}" if np.isfinite(seconds[name]) else "-" for name in solvers]
    peer = seconds.drop(OURS).min()
    ratio = f"{peer / seconds[OURS]:.2g}" if np.isfinite(peer) and np.isfinite(seconds[OURS]) else "-"
    left = [of[OURS][1] for of in found if OURS in of]
    return [*cells, ratio, f"{max(left):.0e}" if left else "-"]


def inside(name: str) -> str:
    """The parameters of a name: ``Simulated[n_features=5,n_samples=9,rho=0.6]`` is "9 x 5, rho=0.6"."""
    rest = name.partition("[")[2].rstrip("]").split(",")
    values = dict(item.split("=", 1) for item in rest if "=" in item)
    shape = values.pop("n_samples", ""), values.pop("n_features", "")
    shown = [" x ".join(shape)] if all(shape) else []
    return ", ".join(shown + [f"{key}={value}" for key, value in values.items()]) or name


def main() -> None:
    """Read, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="what benchopt has written, .parquet or .csv")
    for path in parser.parse_args().files:
        runs = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        data = "dataset_name" if "dataset_name" in runs else "data_name"
        solvers = sorted(set(runs.solver_name), key=lambda name: (name != OURS, name.lower()))
        rows = [
            [inside(where), inside(what), *row(found, solvers)]
            for (where, what), found in runs.groupby([data, "objective_name"])
        ]
        print(runs.objective_name.iloc[0].partition("[")[0] + ", milliseconds\n")
        print(table(["data", "objective", *solvers, "peer / ours", "left"], rows))


if __name__ == "__main__":
    main()
