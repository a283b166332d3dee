"""The papers' models, each a ``fit`` that returns a pytree with ``predict``."""

from sparsejax.models import exclusive_l21, multi_semantic, uncorrelated_group

__all__ = ["exclusive_l21", "multi_semantic", "uncorrelated_group"]
