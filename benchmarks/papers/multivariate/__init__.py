"""Mao & Tsang: the parts of ``benchmarks/multivariate.py``, whose docstring is the protocol."""
