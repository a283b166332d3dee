r"""The experiments of Kong, Liu, Liu & Bao, AAAI 2016 (Uncorrelated Group LASSO), on data of their kind.

    python benchmarks/aaai16.py --data DIR --out DIR [--sets emotions,flags] [--only figure|table|report]

The paper's images (MSRC, Barcelona, TRECVID) could not be had; these are other multi-label sets. Nominal
columns are one-hot; constant columns are dropped, the others standardised by the rows that a model is
fitted to. Of the sets in ``ROWS`` that many rows are drawn; in those of ``RESTRICTED``, labels with fewer
than 20 positives in these rows are left out. The tables say how many remain.

**Groups.** One group for each pair of features whose absolute (centred) correlation exceeds theta = 0.3, as
in the paper. A feature in no pair is not penalised there. Where more than half of the features would be
free of the penalty, or more than half of all pairs would be groups, theta is instead the quantile of the
correlations that leaves each feature in 10 pairs, on average. "Covered": each feature in no pair is a group
by itself, so that all are penalised.

**Figure 2: selection error.** All rows; squared loss of the centred labels;

.. math:: J(X_r) = \min_W \|Y - X_r W\|_F^2 / \|Y\|_F^2

of r selected features. The paper sets the strength so that r rows of W are not zero. For l2,1 nearly every r
can be had. No strength empties the W of the exclusive group l2,1: as alpha grows W shrinks like 1/alpha and
its zero rows settle, with most rows still there if groups are pairs (a row in many pairs is pressed down by
as many terms of its own as by its neighbours), and features in no pair always. Hence these curves:

* "supports": the nonzero rows themselves, along a path of 40 strengths, for about 30 different numbers of
  rows at most. The strongest strength with that number counts.
* "by norm": the first r features by :math:`\|w_i\|`, at the strength at which the exclusive group l2,1 has
  the fewest rows (the weakest of these; its own for "covered"), for l2,1 at the strength with the nearest
  number. Only in this sense can the exclusive group l2,1 select 10 features of 72.
* "by norm, best strength": the least error over all strengths of the path, for each r on its own: the most
  that tuning the strength to r can give, and so a bound for what the paper's curves may be.
* "greedy": orthogonal least squares, which takes the feature that lowers J most, then the next.

**Table 2: prediction.** 5-fold cross-validation; logistic loss of each label with a free intercept; a label
is predicted where its probability exceeds 1/2. Methods:

* l2,1; l1,infinity; exclusive lasso (over the labels, for each feature); exclusive group l2,1, covered: where
  features without a penalty separate a label, the logistic loss has no minimiser. Relative duality gap 1e-4
  or ``MAXITER`` iterations, float32; the largest gap of the chosen models is in the table.
* ReliefF (10 neighbours) of each label, scores averaged over labels, on as many rows as ``RELIEF_BUDGET``
  allows; then scikit-learn's logistic regression (C = 1) of each label on the best features.

Each has one parameter, of 8 values, chosen by the micro F1 in 20 % of the training fold on a model of the
other 80 % (the first, if tied). Strengths are relative, from strong to weak: l2,1 and l1,infinity to the
one that empties W (1/2 to 1/100), exclusive lasso to 1, exclusive group l2,1 to 1 over the mean number of
groups of a feature (0.5 to 1e-3). ReliefF: the number of features, d/64 to d. The model is then fitted to
the whole training fold. Labels that are constant in the rows of a fit are left out of it and predicted as
that constant. 0/0 is 0 in precision and F1. The paper's MLSI, MDDM and MLLS, which project and do not
select, are not here.

Arrays have one shape for all folds, so that each method is compiled once a set: rows of weight 0 fill up the
smaller fits, two empty columns and groups of these fill up the smaller lists of groups (a feature without
a pair is paired with an empty one). None of this changes an answer.

The two experiments are `papers.aaai16.selection` and `papers.aaai16.prediction`.
Each set's numbers go to their own JSON file in ``--out`` as soon as they are known; a set that has one is not
run again (delete the file to do so). Tables and figures are rewritten from all files there.
"""

import jax
from harness.data import folder
from harness.jobs import Results, chosen, parser
from papers.aaai16 import prediction, selection
from papers.aaai16.sets import SETS

jax.config.update("jax_enable_x64", True)


def report(results: Results) -> None:
    """Tables and figures from what is finished."""
    errors, scores = results.found(SETS, "figure_{}"), results.found(SETS, "table_{}")
    parts = selection.report(errors, results.folder) if errors else []
    results.write(parts + (prediction.report(scores) if scores else []))


def main() -> None:
    """Run what is not finished."""
    options = parser(__doc__, out="tables, figures and numbers")
    options.add_argument("--sets", default=",".join(SETS))
    options.add_argument("--only", choices=("figure", "table", "report"), help="report: of what is finished")
    args = options.parse_args()
    path, names, results = folder(args.data), chosen(options, args.sets, SETS), Results(args.out, "aaai16")
    for kind, run in (("figure", selection.run), ("table", prediction.run)):
        for name in names if args.only in (kind, None) else ():
            results.run(f"{kind}_{name}", run, path, name)
            report(results)
    report(results)


if __name__ == "__main__":
    main()
