"""A plugin of pytest, ``-p quick``: eager calls of the library compile without XLA's optimiser, too.

Their own options go before XLA_FLAGS. The tests compile much and compute little.
"""

from sparsejax.driver import OPTIONS

OPTIONS["xla_backend_optimization_level"] = 0
