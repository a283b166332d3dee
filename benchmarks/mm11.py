r"""The ablation of Chen et al., ACM MM 2011 (two label views), on data of their kind.

    python benchmarks/mm11.py --data DIR --out DIR [--sets cal500,usps,mnist5k] [--splits 12] [--report]

The paper's images (NUS-WIDE) could not be had. Here a row of X has labels of two views, a task is a pair
(i, j) of them, and the measure is the area under the ROC curve of each pair in the test rows, averaged over
the pairs with as many training samples. A constant score counts 1/2 (the paper has 0 where there are none).

**Sets.**

* cal500: songs; the 18 emotion tags (the first of the file, "Angry-Agressive", lacks its prefix) and the 31
  genre tags ("Genre-Best" repeats them and is left out), without the NOT- tags: 558 pairs, 8 a song on
  average. 160 songs are for testing and 92 for validation. Of the other 250, those with a pair that is held
  out are dropped and 200 of the rest are for training. Held out are up to 8 pairs, drawn at random of those
  with 4 to 15 of the 250 songs and at least 2 test songs, as long as no more than 50 songs are dropped.
  Features are standardised by the training songs.
* usps, mnist5k: digits as pairs of parity and size (0-1, 2-3, ..., 8-9), 2 x 5, one a row: built sets. The
  ten digits, in random order, have 0, 0, 3, 3, 10, 10, 50, 50, 200 and 200 training samples; the two without
  are of different size, so that each label of a view is seen. 40 of each digit with samples are for
  validation, at most 150 of the rest of every digit for testing. Pixels are only centred.

**Methods.** All linear with a free intercept; squared loss, ``1/(2n)``, of targets 0 and 1, but for SVM.

* NMTL: independent least squares, the solution of least norm where there are many.
* ridge: the same with a tuned ridge penalty, so that what shrinkage alone gains is seen.
* MTLG: least squares + graph; MTLE: + exclusive group lasso; IA-MSL: both (`models.multi_semantic`).
* ridge + graph: IA-MSL with the exclusive penalty replaced by shrinkage.
* SVM: scikit-learn's LinearSVC of each pair; a pair without training samples has a constant score.
* -E, "enrichment": a model for each label of each view, then products of their scores, Eq. (13). For these
  to be confidences, decision values f of the SVM become sigmoid(f) and least-squares scores s become
  sigmoid(4s - 2): two raw ones may both be negative.

Two graphs: "views" joins pairs that share a label (`graphs.from_views`), by the NGD similarity of the other
two labels in cal500 and all alike in the built sets, where labels of a view never meet. "NGD" is the paper's,
of the pairs, with smoothed counts. eta = 1.

Strengths are chosen by the mean AUC of the pairs that are not held out in the validation rows, one for all
pairs; where there are two, from all combinations. They are relative: of a penalty to the mean variance v of
the features, of a graph to v over its mean degree. No method is fitted to the validation rows. Exclusive
models are solved to a relative duality gap of 1e-4, or for ``MAXITER`` iterations; the report has the largest
gap. NMTL, MTLG and both with ridge are solved exactly, by decomposing X'X and L.

Means and standard errors are over random splits, which share rows, so that the errors are somewhat too small.
A column of the tables is shown if every split has pairs with so many samples and with test samples.
The parts are in `papers.mm11`: ``splits``, ``methods`` and ``report``.
Each set's numbers go to their own JSON file in ``--out`` as soon as they are known; a set that has one is not
run again (delete the file to do so). Tables and the figure are rewritten from all files there.
"""

import time
from pathlib import Path

import jax
import numpy as np
from harness.data import folder
from harness.jobs import Results, chosen, parser
from papers.mm11.methods import BOTH, METHODS, Split, candidates
from papers.mm11.report import mean_auc, report
from papers.mm11.splits import pairs_of, split_of

import sparsejax as sj

jax.config.update("jax_enable_x64", True)

SETS = ("cal500", "usps", "mnist5k")


def run_split(split: dict) -> dict:
    """Every method: the strengths chosen, and the test AUC of each pair (None where undefined)."""
    pairs = pairs_of(split["Y1"], split["Y2"])
    validation, test, held = split["validation"], split["test"], split["held"]
    count = pairs[split["train"]].sum(0)
    if count[held].any():
        raise RuntimeError("a pair that is held out has training samples")
    made = Split(split, np.concatenate([validation, test]))
    scores = candidates(made)

    def quality(values: np.ndarray) -> float:
        known = values[: len(validation)][:, ~held]
        return float(sj.metrics.mean_auc(pairs[validation][:, ~held], known).mean)

    methods = {}
    for method in METHODS:
        tried = {setting: quality(values) for setting, values in scores[method].items()}
        best = max(tried, key=tried.__getitem__)
        area = np.asarray(sj.metrics.auc(pairs[test], scores[method][best][len(validation) :]))
        methods[method] = {
            "setting": [float(x) for x in best],
            "validation": tried[best],
            "zeros": made.zeros["views", *best] if method == BOTH else None,
            "auc": [None if np.isnan(a) else float(a) for a in area],
        }
    return {"count": np.where(held, -1, count).astype(int).tolist(), "gap": made.gap, "methods": methods}


def run_set(path: Path, name: str, splits: int) -> dict:
    """Random splits of one set."""
    out = []
    for seed in range(splits):
        start = time.perf_counter()
        split = split_of(path, name, np.random.default_rng(seed))
        out.append(run_split(split))
        both, independent = (mean_auc(out[-1], m) for m in (BOTH, "NMTL"))
        seconds = time.perf_counter() - start
        print(f"{name}, split {seed}: {seconds:.0f} s, both {both:.1f}, NMTL {independent:.1f}", flush=True)
    return {"splits": out, "n": len(split["train"]), "d": split["X"].shape[1], "names": split["names"]}


def main() -> None:
    """Run what is not finished, and rewrite tables and figure."""
    options = parser(__doc__, out="tables, the figure and numbers")
    options.add_argument("--sets", default=",".join(SETS))
    options.add_argument("--splits", type=int, default=12, help="random splits of each set")
    options.add_argument("--report", action="store_true", help="only rewrite tables and the figure")
    args = options.parse_args()
    names, results = chosen(options, args.sets, SETS), Results(args.out, "mm11")
    for name in [] if args.report else names:
        results.run(name, run_set, folder(args.data), name, args.splits)
    found = results.found(SETS)
    if found:
        results.write(report(found, results.folder))


if __name__ == "__main__":
    main()
