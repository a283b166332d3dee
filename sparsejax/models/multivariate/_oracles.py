r"""Oracles: for a given truth, functions ``v -> (z, Delta)`` that maximise Delta - z'v over labellings.

For given numbers a of true and b of false positives, the best labelling calls those a positives and those b
negatives positive that have the highest scores. The search is therefore over tables (a, b), with the prefix
sums P and N of the scores of positives and negatives, each in decreasing order.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK_ENTRIES = 1 << 20  # entries of a table that are searched at once
MAX_STORED_ENTRIES = 1 << 22  # entries of a user's table of losses; a larger one is computed at every call

Oracle = Callable[[np.ndarray], tuple[np.ndarray, float]]
Search = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[int, int]]
Delta = Callable[..., Any]


def single_flips(positive: np.ndarray, scale: float) -> Oracle:
    """``Delta = scale (b + c)``: each example is decided alone."""
    y = np.where(positive, 1.0, -1.0)

    def oracle(v: np.ndarray) -> tuple[np.ndarray, float]:
        flip = scale > 2 * y * v
        return (2 * y * flip).astype(np.int8), scale * float(flip.sum())

    return oracle


def selection(positive: np.ndarray, k: int, s: float) -> Oracle:
    """``Delta = 100 - s a``, k examples are called positive: those with the largest 2v - s [y = 1]."""
    y = np.where(positive, 1, -1).astype(np.int8)

    def oracle(v: np.ndarray) -> tuple[np.ndarray, float]:
        called = np.zeros(len(y), bool)
        called[np.argpartition(s * positive - 2 * v, k - 1)[:k]] = True
        return y - np.where(called, 1, -1).astype(np.int8), 100.0 - s * float((called & positive).sum())

    return oracle


def concave_tables(positive: np.ndarray, beta: float, delta: Delta) -> Oracle:
    """For the F measure: for each a the value is concave in b, and bisection finds its maximum."""
    square = beta**2
    p, q = int(positive.sum()), int((~positive).sum())
    # Delta = 100 - factor a / (a + b + square p)
    a, factor = np.arange(p + 1.0), 100 * (1 + square)
    steps = math.ceil(math.log2(q + 1)) + 1

    def search(low: np.ndarray, P: np.ndarray, N: np.ndarray) -> tuple[int, int]:
        low = np.append(low, -np.inf)
        b, end = np.zeros(p + 1, int), np.full(p + 1, q)
        for _ in range(steps):  # b becomes the first at which one more false positive gains nothing
            middle = (b + end) // 2
            s = a + middle + square * p
            gains = 2 * low[middle] + factor * a / (s * (s + 1)) > 0
            b, end = np.where(gains, middle + 1, b), np.where(gains, end, middle)
        value = -factor * a / (a + b + square * p) + 2 * P + 2 * N[b]
        best = int(np.argmax(value))
        return best, int(b[best])

    return _by_tables(positive, delta, search)


def check_losses(losses: np.ndarray) -> None:
    """Raise a ValueError if a loss is NaN, inf or negative; -inf marks a table that is not allowed."""
    if np.isnan(losses).any() or (losses == np.inf).any():
        raise ValueError("delta gives NaN or infinity for some table; finite values or -inf are needed.")
    if (losses[np.isfinite(losses)] < -1e-9).any():
        raise ValueError("delta gives a negative loss for some table; >= 0 or -inf is needed.")


def all_tables(positive: np.ndarray, delta: Delta) -> Oracle:
    """For any Delta: a search of all tables, in blocks of values of a.

    Raises:
      ValueError: delta gives NaN, inf or a negative value, or allows no table.
    """
    p, q = int(positive.sum()), int((~positive).sum())
    a, b = np.arange(p + 1.0)[:, None], np.arange(q + 1.0)[None]
    rows = max(1, BLOCK_ENTRIES // (q + 1))
    starts = range(0, p + 1, rows)

    def block(start: int) -> np.ndarray:
        some = a[start : start + rows]
        losses = np.asarray(delta(some, b, p - some, q - b), float)
        return np.broadcast_to(losses, (len(some), q + 1))

    allowed, stored = False, {}
    for start in starts:
        losses = block(start)
        check_losses(losses)
        allowed = allowed or bool(np.isfinite(losses).any())
        if (p + 1) * (q + 1) <= MAX_STORED_ENTRIES:
            stored[start] = losses
    if not allowed:
        raise ValueError("delta allows no table (all its values are -inf).")

    def search(low: np.ndarray, P: np.ndarray, N: np.ndarray) -> tuple[int, int]:
        value, best = -np.inf, (0, 0)
        for start in starts:
            losses = stored[start] if stored else block(start)
            values = losses + 2 * P[start : start + rows, None] + 2 * N[None]
            i, j = np.unravel_index(np.argmax(values), values.shape)
            if values[i, j] > value:
                value, best = values[i, j], (start + int(i), int(j))
        return best

    return _by_tables(positive, delta, search)


def _by_tables(positive: np.ndarray, delta: Delta, search: Search) -> Oracle:
    """An oracle that sorts scores, gets a and b from ``search(low, P, N)``, and makes the code z."""
    plus, minus = np.flatnonzero(positive), np.flatnonzero(~positive)
    p, q, n = len(plus), len(minus), len(positive)

    def oracle(v: np.ndarray) -> tuple[np.ndarray, float]:
        top, low = plus[np.argsort(-v[plus], kind="stable")], minus[np.argsort(-v[minus], kind="stable")]
        P, N = (np.concatenate([[0.0], np.cumsum(v[order])]) for order in (top, low))
        a, b = search(v[low], P, N)
        z = np.zeros(n, np.int8)
        z[top[a:]], z[low[:b]] = 2, -2
        # Numbers of numpy, as in `search`: Python's raise for 0/0, and have no methods of arrays.
        return z, float(delta(*map(np.float64, (a, b, p - a, q - b))))

    return oracle


def swapped_pairs(positive: np.ndarray) -> Oracle:
    """For the ROC area: a pair (i, j) is swapped if v_i - v_j < 1; z counts swapped pairs of each example.

    The counts of positives and of negatives come from one search, so that rounding cannot make them differ.
    """
    plus, minus = np.flatnonzero(positive), np.flatnonzero(~positive)
    rho = 100.0 / (len(plus) * len(minus))

    def oracle(v: np.ndarray) -> tuple[np.ndarray, float]:
        order = plus[np.argsort(v[plus], kind="stable")]
        # The number of positives swapped with each negative. For scores beyond 1/eps, where v + 1 == v,
        # positives with the same score are swapped too.
        sorted_scores = v[order]
        of_minus = np.searchsorted(sorted_scores, v[minus] + 1)
        of_minus = np.maximum(of_minus, np.searchsorted(sorted_scores, v[minus], "right"))
        # Positive i, in order, is swapped with each negative that is swapped with more than i positives.
        of_plus = np.cumsum(np.bincount(of_minus, minlength=len(plus) + 1)[::-1])[::-1][1:]
        z = np.zeros(len(v))
        z[order], z[minus] = rho * of_plus, -rho * of_minus
        return z, rho * float(of_minus.sum())

    return oracle
