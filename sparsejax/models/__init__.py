"""The papers' models, each a ``fit`` that returns a pytree with ``predict``."""

from sparsejax.models import exclusive_l21, mil, multi_semantic, multivariate, ofa_lasso, uncorrelated_group

__all__ = ["exclusive_l21", "mil", "multi_semantic", "multivariate", "ofa_lasso", "uncorrelated_group"]
