"""A line ``::: all sparsejax.losses`` of a page is the module and every name of its ``__all__``."""

import importlib
import inspect
import re

from mkdocs.exceptions import PluginError

import sparsejax

OWN_PAGES = sparsejax.losses, sparsejax.penalties, sparsejax.solvers
# The names that most readers look for, in this order; the other names of a module follow as they are listed.
FIRST = {
    "sparsejax": "Problem Solution path cross_validate lambda_max stability_selection tune predict "
    "rank_features",
    "sparsejax.losses": "SquaredLoss LogisticLoss SoftmaxLoss CoxLoss PoissonLoss HuberLoss QuantileLoss "
    "SquaredHingeLoss HuberHingeLoss GraphLaplacian",
    "sparsejax.penalties": "L1 L21 ExclusiveL21 ExclusiveLasso GroupLasso ElasticNet SparseGroupLasso L1Inf "
    "ExclusiveGroupL21 ExclusiveGroupLasso SortedL1 slope_strengths TotalVariation SumTo "
    "NonNegative Box SquaredL2 Sum",
    "sparsejax.prox": "l1 l2 squared_l1 exclusive_l21",
    "sparsejax.solvers": "solve admm prox_newton working_set variational_newton newton_admm fista",
    "sparsejax.sklearn": "SparseClassifier SparseClassifierCV SparseRegressor SparseRegressorCV SparseCox "
    "SparseCoxCV StabilitySelector",
    "sparsejax.plots": "support path cross_validation stability",
    "sparsejax.metrics": "accuracy r2 auc concordance_index",
}
LAST = "Penalty", "Loss", "LinearModelLoss", "ConvergenceWarning", "ConvergenceError"
# The members of a base that its users call; those who write their own find all of them in docs/adding-a-*.md.
CALLED = {
    "Penalty": "value, prox, conjugate, dual_scale",
    "Loss": "intercept, predictions, reweighted, params_shape, dtype",
}
LINE = re.compile(r"^::: all (\S+)$", re.M)


def names_of(module) -> list[str]:
    """Its public classes and functions: those of ``__all__``, or all that it defines."""
    own = getattr(module, "__all__", None)
    if own is None:
        own = [n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
        own = [n for n in own if not n.startswith("_")]
    if module is sparsejax:  # these have pages of their own
        own = [n for n in own if not any(n in part.__all__ for part in OWN_PAGES)]
    own = [name for name in own if inspect.isclass(x := getattr(module, name)) or inspect.isroutine(x)]
    first = FIRST.get(module.__name__, "").split()
    if unknown := set(first) - set(own):
        raise PluginError(f"no public name of {module.__name__}: {', '.join(sorted(unknown))}")
    last = [name for name in LAST if name in own and name not in first]
    return first + [name for name in own if name not in first and name not in last] + last


def options_of(thing) -> str:
    """The methods of a loss or penalty are those of its base, and shown there alone."""
    bases = sparsejax.Loss, sparsejax.Penalty, sparsejax.losses.LinearModelLoss
    if name := next((n for n in CALLED if thing is getattr(sparsejax, n)), None):
        return f"    options: {{members: [{CALLED[name]}]}}\n"
    known = inspect.isclass(thing) and issubclass(thing, bases) and thing not in bases
    return "    options: {members: false}\n" if known else ""


def on_page_markdown(markdown, page, config, files):
    """Write the lines out."""

    def listed(match):
        path = match.group(1)
        module = importlib.import_module(path)
        return "\n".join(
            f"::: {path}.{name}\n" + options_of(getattr(module, name)) for name in names_of(module)
        )

    return LINE.sub(listed, markdown)
