"""What every prox is, whatever numbers it gets: inequalities for tests with hypothesis.

``SPARSEJAX_EXAMPLES=100 python -m pytest -m properties`` draws a hundred times as many examples, at random.
"""

import os

import numpy as np
import pytest
from hypothesis import settings

MORE = int(os.environ.get("SPARSEJAX_EXAMPLES", "1"))  # examples, times
properties = pytest.mark.properties


def drawn(examples: int) -> settings:
    """Settings of so many examples; always the same ones, unless more are asked for."""
    return settings(max_examples=MORE * examples, deadline=None, derandomize=MORE == 1, database=None)


def inner(a, b):
    return np.sum(np.asarray(a, np.longdouble) * np.asarray(b, np.longdouble))


def assert_optimal(x, z, others, value, scaling, tol, tiny=1e-300):
    r"""No point is better than z: :math:`s\,(g(u) - g(z)) \ge \langle x - z, u - z\rangle` for every u.

    ``tol`` is relative to what is summed, entries of z are known to ``tiny``.
    """
    tiny = np.longdouble(tiny)  # whose square is no float64
    for u in others:
        gain, size = scaling * (value(u) - value(z)), scaling * (abs(value(u)) + abs(value(z)))
        step = np.asarray(u, np.longdouble) - z
        slack = gain - inner(np.asarray(x, np.longdouble) - z, step)
        size += inner(np.abs(x) + np.abs(z), np.abs(u) + np.abs(z))
        assert slack >= -tol * size - tiny * (tiny + np.abs(x).sum() + np.abs(u).sum()), (slack, size)


def assert_firm(x, y, zx, zy, tol, tiny=1e-300):
    r"""Firmly non-expansive: :math:`\|z_x - z_y\|^2 \le \langle z_x - z_y, x - y\rangle`."""
    tiny = np.longdouble(tiny)
    step, size = np.asarray(zx, np.longdouble) - zy, inner(np.abs(x) + np.abs(y), np.abs(x) + np.abs(y))
    assert inner(step, np.asarray(x, np.longdouble) - y) - inner(step, step) >= -tol * size - tiny * (
        tiny + np.abs(x).sum() + np.abs(y).sum()
    )
