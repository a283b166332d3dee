"""Kong, Liu, Liu & Bao, AAAI 2016: the parts of ``benchmarks/aaai16.py``, whose docstring is the protocol."""
