r"""Section 6 of Ming & Ding, IJCAI 2019 (exclusive l2,1 feature selection).

    python benchmarks/ijcai19.py --data DIR --out DIR [--datasets yale,glioma] [--figure 1|2|both|none]
                                 [--kept SHARE]

**Figure 2, accuracy by number of features.** 5-fold stratified cross-validation. In each training fold:
constant columns are dropped, the others standardised (mean and deviation of that fold, applied to the test
fold); then

.. math:: \min_W \|XW + \mathbf 1 b^\top - Y\|_F^2 + g(W), \qquad
          g = \alpha\|W\|_{2,1},\quad \beta\sum_i\|w_i\|_1^2,\quad \alpha\|W\|_{2,1} + \beta\sum_i\|w_i\|_1^2,

Y the one-hot labels, b a free intercept, each to a relative duality gap of 1e-4 in float64. The strengths are
set so that all of these keep the same number of nonzero weights, as near as they can,

.. math:: T = \max(120\,k,\; 1.25\,d) :

the exclusive lasso keeps one weight a row at least, so T > d, and 80 features for each of k classes need
T > 80 k, with room for classes that get fewer. For l2,1, which keeps rows whole, T counts weights too.
Search: a warm path of decreasing strengths until the count first passes T, then up to three times four
more strengths in between; the nearest count wins and is recorded. In glioma (n k << T) l2,1 and
exclusive l2,1 with a small beta cannot reach T; the path ends at 1/256 of the strength that makes W = 0.
Exclusive l2,1 has two strengths: one row of the tables has alpha = beta, as Figure 1 of the paper does;
in the other beta / alpha in ``RATIOS`` is picked by the accuracy in a 25 % hold-out split off the
*training* fold. That is one more thing tuned than the other methods have. For a given ratio the count is
not monotone in the strength, and the strongest solution that has T weights is taken. ``--kept 0.5`` sets
T to half of all d k weights instead: the rule is ours, the paper does not say how many weights it keeps.

Class j takes the m features of largest |W_ij| (at most the nonzero ones) and trains LIBSVM (linear, C = 1)
to tell j from the rest; the class of largest decision value wins. The paper says "majority voting" of "an
SVM classifier for each class". Of k yes/no answers the majority is a tie unless exactly one is yes;
breaking ties by the decision value *is* our rule, since the largest value is a yes if any is. Breaking them
at random is reported as "votes". In another reading each class's features train a classifier for all
classes, and these k vote: "committee", computed at m in ``COMMITTEE`` except in yaleb, where it takes long;
ties go to the class whose label comes first.

Filters give one ranking for all classes, as they are commonly used and, we think, in the paper: the F
statistic (scikit-learn), ReliefF (10 neighbours) and mRMR (difference form; features cut in three at mean
-+ deviation / 2), both of fast-select. "F, by class" ranks by the F statistic of each class against the
rest: what a ranking for each class is worth without any sparse model.

mnist5k is cut to 100 images a digit, as in the paper. newsgroups20_2000 comes with its 5000 terms chosen by
the F statistic on *all* documents, as in the paper, so its accuracies are optimistic, for all methods.

**Figure 1, convergence.** alpha = beta = 1, standardised columns, all rows: the objective by iteration of the
algorithm of the paper as printed (`sj.alm(faithful=True)`) from zero and from N(0, 0.01^2) weights, of
`sj.admm` and of `sj.fista` from zero, as relative excess over the optimum, which its duality gap certifies.

The parts are in `papers.ijcai19`: ``rankings``, ``accuracy`` and ``report`` (Figure 2), ``convergence`` (1).
Each data set's numbers go to their own JSON file in ``--out`` as soon as they are known, or with ``--kept``
in a folder there; a set that has one is not run again (delete the file to do so). Tables and figures are
rewritten from all files there (``--figure none`` does only that).
"""

import jax
from harness.data import folder
from harness.jobs import Results, chosen, parser
from papers.ijcai19 import accuracy, convergence, report

jax.config.update("jax_enable_x64", True)

DATASETS = ("yale", "glioma", "cnae9", "mnist5k", "isolet", "yaleb", "newsgroups20_2000")
CONVERGENCE = ("yale", "isolet", "glioma", "yaleb")


def rewrite(results: Results) -> None:
    """Tables and figures from what is finished."""
    one, two = results.found(CONVERGENCE, "fig1_{}"), results.found(DATASETS, "fig2_{}")
    if one:
        convergence.draw(one, results.folder / "ijcai19_fig1.png")
    if two:
        results.write(report.report(two, results.folder))


def main() -> None:
    """Run what is not finished."""
    options = parser(__doc__, out="tables, figures and numbers")
    options.add_argument("--datasets", default=",".join(DATASETS))
    options.add_argument("--figure", choices=("1", "2", "both", "none"), default="both")
    options.add_argument("--kept", type=float, help="share of the d k weights kept, in place of T")
    args = options.parse_args()
    path, names = folder(args.data), chosen(options, args.datasets, DATASETS)
    results = Results(args.out / f"kept_{args.kept:g}" if args.kept else args.out, "ijcai19")
    for name in names if args.figure in ("1", "both") else ():
        if name in CONVERGENCE:
            results.run(f"fig1_{name}", convergence.run, path, name)
            rewrite(results)
    for name in names if args.figure in ("2", "both") else ():
        results.run(f"fig2_{name}", accuracy.run, path, name, args.kept)
        rewrite(results)
    rewrite(results)


if __name__ == "__main__":
    main()
