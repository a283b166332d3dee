"""Cutting planes for F1 on text: seconds, masters and gap over budgets B and strengths C/n.

    python benchmarks/cutting_planes.py --data DIR [--datasets basehock,relathe,cnae9] [--measure F1]

The training rows of a stratified split of 60 %, weighed as in ``multivariate.py``; tol 1e-3; the threads that
the machine gives (one: set OMP_NUM_THREADS=1 first). A fit that takes longer than ``--cap`` CPU seconds is
stopped and shown with the gap that it had.
"""

import time
from contextlib import suppress
from functools import partial

from harness.data import folder, hold_out, load_sparse
from harness.jobs import parser
from harness.tables import Printed
from papers.multivariate.methods import signs, weigh

from sparsejax.models import multivariate

BUDGETS, STRENGTHS = (5, 50, 200), (0.01, 0.1, 1.0)
MEASURES = {"F1": multivariate.f_beta, "PRBEP": multivariate.prbep, "AUC": multivariate.roc_area}


class Stopped(Exception):
    """The time is over."""


def watch(start: float, cap: float, seen: list[multivariate.Progress], now: multivariate.Progress) -> None:
    """Remember the progress; stop the fit when its time is over."""
    seen[:] = [now]
    if time.process_time() - start > cap:
        raise Stopped


def main() -> None:
    """Print the table."""
    found = parser(__doc__)
    found.add_argument("--datasets", default="basehock,relathe,cnae9")
    found.add_argument("--measure", default="F1", choices=list(MEASURES))
    found.add_argument("--cap", type=float, default=60.0)
    args = found.parse_args()
    numbers = ("CPU s", ">7.2f"), ("wall s", ">7.2f"), ("masters", ">8"), ("gap", ">9.1e")
    printed = Printed(("data", "<22"), ("B", ">5"), ("C/n", ">6"), *numbers)
    for name in args.datasets.split(","):
        X, y = load_sparse(folder(args.data), name)
        rows, _ = hold_out(y, 0.4, 0)
        A, s = weigh(X[rows])[0], signs(y[rows], y.max())
        for budget in BUDGETS:
            for strength in STRENGTHS:
                wall, cpu = time.perf_counter(), time.process_time()
                seen: list[multivariate.Progress] = []
                with suppress(Stopped):
                    multivariate.fit(
                        A,
                        s,
                        measure=MEASURES[args.measure](),
                        budget=budget,
                        C=strength * len(s),
                        tol=1e-3,
                        progress=partial(watch, cpu, args.cap, seen),
                    )
                took = time.process_time() - cpu, time.perf_counter() - wall
                (last,) = seen or [multivariate.Progress(0, 1.0, 1.0, 0, 0)]
                gap = (last.objective - last.lower_bound) / last.objective
                printed.row(
                    f"{name} {A.shape[0]} x {A.shape[1]}", budget, strength, *took, last.num_iters, gap
                )


if __name__ == "__main__":
    main()
