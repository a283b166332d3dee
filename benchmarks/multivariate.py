r"""The experiments of Mao & Tsang (features for multivariate performance measures), on data of their kind.

    python benchmarks/multivariate.py --data DIR --out DIR [--only accuracy|bags|speed|sensitivity|report]
                                      [--sets basehock,...] [--workers 2]

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

The parts are in `papers.multivariate`: ``methods``, ``accuracy`` (with sensitivity), ``bags``, ``speed`` and
``report``. Every job runs in a process of its own with one BLAS thread, writes its own JSON file in ``--out``
when it ends and is not run again if that is there.
"""

from pathlib import Path

from harness.data import folder
from harness.jobs import Results, one_blas_thread, parser
from papers.multivariate import accuracy, bags, speed
from papers.multivariate.report import report


def run(part: str, path: Path, sets: list[str], workers: int, results: Results) -> None:
    """The jobs of a part that are not finished."""
    wanted = lambda known: [name for name in known if not sets or name in sets]
    if part == "speed":
        results.run_all([("schedules", speed.run_schedules, path)])
        for n, m in speed.SIZES:  # one at a time: memory is that of one fit
            results.run_all([(f"growth_{n}_{m}", speed.run_growth, n, m)])
        results.run_all([("newsgroups", speed.run_newsgroups, path, workers)])
    elif part == "sensitivity":
        results.run_all([("sensitivity", accuracy.run_sensitivity, path)])
    elif part == "bags":
        results.run_all(bags.jobs(path, wanted(bags.BAGS)), workers)
    elif part == "accuracy":
        results.run_all(accuracy.jobs(path, wanted(accuracy.SETS)), workers)


def main() -> None:
    """Run what is not finished, and rewrite tables and figures."""
    parts = ("speed", "sensitivity", "bags", "accuracy")
    options = parser(__doc__, out="tables, figures and numbers")
    options.add_argument("--only", choices=(*parts, "report"))
    options.add_argument("--sets", default="")
    options.add_argument("--workers", type=int, default=1)
    args = options.parse_args()
    results, sets = Results(args.out, "multivariate"), [name for name in args.sets.split(",") if name]
    one_blas_thread()
    for part in parts:
        if args.only in (None, part):
            run(part, folder(args.data), sets, args.workers, results)
    text = report(results)
    results.write(text)
    print("\n".join(text))


if __name__ == "__main__":
    main()
