"""Chen et al., ACM MM 2011: the parts of ``benchmarks/mm11.py``, whose docstring is the protocol."""
