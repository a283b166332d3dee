"""Alias of `sparsejax.driver.OPTIONS`, the compiler options of XLA; it stays for one release."""

from sparsejax.driver import OPTIONS

__all__ = ["OPTIONS"]
