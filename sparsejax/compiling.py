"""An alias, for one release: `sparsejax.driver.OPTIONS` is where XLA's options are."""

from sparsejax.driver import OPTIONS

__all__ = ["OPTIONS"]
