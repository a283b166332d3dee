"""Ming & Ding, IJCAI 2019: the parts of ``benchmarks/ijcai19.py``, whose docstring is the protocol."""
