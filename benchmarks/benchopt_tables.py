"""Tables of what `benchopt run` has written: seconds to a relative suboptimality of 1e-6.

    python benchmarks/benchopt_tables.py benchmark_lasso/outputs/sparsejax.parquet [more files]

Prints a markdown table a file. The relative suboptimality of a point is benchopt's, (F - F*) / (F0 - F*): F*
the least objective that any of the solvers has reached on that data set, F0 the first of the curve, at zero.
A point's time is the median over repetitions, its objective the worst of them; a solver's time is that of
its fastest point that is so good, a dash if there is none. "peer / ours" is the time of the fastest peer over
ours, "left" the relative suboptimality of our best point. How to run the benchmarks: ``benchopt/README.md``.
"""

import argparse
from pathlib import Path

import pandas as pd
from harness.tables import table

OURS = "sparsejax"
GOOD = 1e-6


def curve(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a stopping value, in the order of the runs: median seconds, the worst objective."""
    return runs.groupby("stop_val", sort=False).agg(
        seconds=("time", "median"), objective=("objective_value", "max")
    )


def seconds_to(points: pd.DataFrame, objective: float) -> float | None:
    """Of the fastest point that is as good as that; None if there is none."""
    good = points.seconds[points.objective <= objective]
    return None if good.empty else float(good.min())


def row(runs: pd.DataFrame, solvers: list[str]) -> list[str]:
    """The cells of one data set and objective, after their names."""
    curves = {solver: curve(found) for solver, found in runs.groupby("solver_name")}
    least = min(points.objective.min() for points in curves.values())
    first = max(points.objective.iloc[0] for points in curves.values())
    found = {solver: seconds_to(points, least + GOOD * (first - least)) for solver, points in curves.items()}
    peers = [seconds for solver, seconds in found.items() if solver != OURS and seconds is not None]
    cells = ["-" if found.get(solver) is None else f"{1e3 * found[solver]:.3g}" for solver in solvers]
    ratio = f"{min(peers) / found[OURS]:.2g}" if peers and found.get(OURS) else "-"
    left = f"{(curves[OURS].objective.min() - least) / (first - least):.0e}" if OURS in curves else "-"
    return [*cells, ratio, left]


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
