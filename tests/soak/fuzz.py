"""Malformed calls, drawn from the signatures: each must end in an error that names the argument, or honestly.

    python tests/soak/fuzz.py [--calls 20000] [--seed 0] [--log FILE]

A call is a good one (`CALLS`) in which one argument is replaced by a value drawn for what it is (`KINDS`, by
its name). What is never right must raise a TypeError or ValueError of ours that names the argument; what may
be right must do so, too, or return, and then nothing may say converged that is not finite. A crash or a
call of more than ten minutes ends the process; the last line of the log is the call.
"""

import argparse
import collections
import faulthandler
import functools
import inspect
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)  # before the arguments of the calls are made

from fuzz_calls import CALLS, PENALTY_METHODS, D, K, N

import sparsejax as sj

PACKAGE = str(Path(sj.__file__).parent)


# ------------------------------------------------------------------ values


class Drawn(NamedTuple):
    """A value in place of an argument."""

    value: Any
    never: bool  # it must be refused


class Opaque:
    """Of no use to anybody."""


def never(*values: Any) -> list[Drawn]:
    return [Drawn(value, True) for value in values]


def maybe(*values: Any) -> list[Drawn]:
    return [Drawn(value, False) for value in values]


STRANGE = (
    "text",
    {"a": 1},
    Opaque(),
    len,
    np.float64,
    1j,
    np.datetime64("2020-01-01"),
    [[1, 2], [3]],
    {1, 2},
)


def arrays(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an array."""
    good = np.asarray(good)
    shape = good.shape or (1,)
    poisoned = np.array(good, float)
    if poisoned.size:
        poisoned.flat[rng.integers(poisoned.size)] = rng.choice([np.nan, np.inf, -np.inf])
    masked = np.ma.masked_array(good, np.arange(good.size).reshape(good.shape) == 0)
    other = tuple(int(s) for s in rng.integers(0, 4, rng.integers(0, 4)))
    return [
        *never(
            *STRANGE,
            poisoned,
            masked,
            np.full(shape, "a"),
            good + 1j,
            np.full(shape, np.datetime64("2020-01-01")),
            np.array([{}] * max(good.size, 1), object).reshape(shape),
            np.zeros((2, 2, 2, 2)),
        ),
        *maybe(
            None,
            0,
            True,
            -1.5,
            np.zeros(shape),
            good[:-1] if good.ndim else 2.0,
            good.tolist(),
            -good,
            good.T,
            np.float64(1e38) * good.astype(np.float32),
            good.astype(np.int64),
            good.astype(np.float16),
            good > 0,
            np.zeros(other),
            rng.standard_normal(other),
            scipy.sparse.coo_array(np.atleast_2d(good)),
            1e300 * good,
            5e-324 * np.ones(shape),
            np.asfortranarray(good),
            good[None],
            [],
        ),
    ]


def numbers(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a real number."""
    return [
        *never(
            *STRANGE,
            np.nan,
            "0.1",
            b"1",
            np.zeros((2, 3, 4, 5)),
            [None],
            np.array(["x"]),
            np.array(None),
            np.ma.masked,
            [[]],
        ),
        *maybe(
            None,
            0,
            -1,
            True,
            np.float16(1),
            np.inf,
            -np.inf,
            1e-320,
            1e300,
            10.0 ** rng.uniform(-12, 12),
            [1.0],
            np.ones(D),
            np.ones((D, K)),
            -(10.0 ** rng.uniform(-12, 12)),
            np.float32(0.5),
            np.int8(3),
            2**70,
            [],
            (),
        ),
    ]


def counts(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an integer."""
    return [
        *never(
            *STRANGE,
            np.nan,
            "3",
            1.5,
            np.inf,
            -1,
            -(2**40),
            [1.5],
            np.float32(0.5),
            np.array(["x"]),
            np.zeros((2, 3, 4)),
            [None],
        ),
        *maybe(None, 0, 1, True, 2.0, 2**31, 2**40, 2**70, [1, 2], np.int8(3), np.uint64(2), [], (1,)),
    ]


def ids(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of integers that name something."""
    good = np.arange(N) % 3 if np.ndim(good) == 0 else np.asarray(good)
    far = np.array(good)
    far.flat[0] = 2**40
    return [
        *never(*STRANGE, good * np.nan, good[..., None, None]),
        *maybe(
            good + 0.5,
            np.full(good.shape, "a"),
            good + 1j,
            far,
            -1 - good,
            None,
            3,
            good[:-1],
            good.astype(float),
            good.astype(str),
            good > 0,
            [],
            [1, "a", None, 2.5],
            np.ma.masked_array(good, good == 0),
            good.astype(np.uint8),
            good.tolist(),
            np.zeros((2, 2, 2, 2)),
            good.astype(object),
            np.full(good.shape, np.datetime64("2020-01-01")),
        ),
    ]


def switches(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of True or False; or of the values of an intercept."""
    if not isinstance(good, bool) and good is not None:
        return numbers(rng, good)
    return never(
        *STRANGE, 0, 1, 2, None, "yes", "True", 1.0, np.array([True, False]), [], [True], np.nan, np.int64(1)
    )


def choices(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a name."""
    if not isinstance(good, str):
        return objects(rng, good)
    return never(
        "", "no such", good.upper() + "x", 0, 1.5, None, [good], {good: 1}, Opaque(), np.zeros(2), True
    )


def objects(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an object of ours."""
    return never(
        "text",
        3,
        1.5,
        {"a": 1},
        Opaque(),
        [good, good],
        type(good),
        np.zeros(3),
        np.datetime64("2020-01-01"),
        sj.Problem,
        [1, "a"],
        1j,
    )


def functions(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a function."""
    return never("text", 3, {"a": 1}, Opaque(), np.zeros(3), [len], True)


def names(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of several names."""
    return [*never("text", 3, Opaque(), len, ["a"], True, [[]] * 9, np.zeros((1, 4))), *maybe(None, ())]


def folders(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a folder."""
    return [*never(0, 1.5, True, ["a"], {"a": 1}, Opaque(), np.zeros(2), "a\0b", __file__), *maybe(None)]


def splits(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of what splits rows."""
    rows = np.arange(N)
    return [
        *never("text", 1.5, -1, 0, 1, N + 1, 2**70, Opaque(), len, [], {"a": 1}, np.nan, [(rows, rows)]),
        *never([(rows[:6], rows[6:])], [1, 2], [(rows[1:], [0, 0])], [(rows, [N])], np.arange(N)),
        *maybe(None, 2, np.int8(3), [(rows[:6], rows[6:]), (rows[6:], rows[:6])], True, 3.0),
    ]


def by_class(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of weights by class."""
    return [
        *never("text", 3, 1.5, [1, 2], Opaque(), len, {0: -1}, {0: np.nan}, {0: "a"}, {5: 1.0}, {0: None}),
        *never({0: 0, 1: 0, 2: 0}, np.ones(3), {0: [1.0]}, True),
        *maybe(None, "balanced", {}, {0: 2}, {0: 0.0}, {0: 1e300}, {1: True}),
    ]


def scores(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a score."""
    return [
        *never("no such", "", 0, 1.5, ["r2"], {"r2": 1}, Opaque(), True, b"r2"),
        *maybe(None, "r2", "accuracy"),
    ]


def batches(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of pairs of X and Y."""
    (x, y), *_ = good
    return [
        *never("text", 3, None, Opaque(), x, [], [x], [(x, y, y)], [(x, y), (x[:, :2], y)], [(x, y[:3])]),
        *never(
            [(x, y), (x, y[:, :1])], [(x * np.nan, y)], [None], {"a": 1}, [(x, y.astype(str))], [(x, y + 1j)]
        ),
        *maybe([(x, y)], ((x, y) for _ in range(2)), [(x[:1], y[:1])], [(x.tolist(), y)], (good[0], good[1])),
    ]


# ------------------------------------------------------------------ calls

KINDS: dict[str, Callable[..., list[Drawn]]] = {
    **dict.fromkeys(
        (
            "X",
            "Y",
            "Z",
            "W",
            "V",
            "x",
            "y",
            "init",
            "weights",
            "time",
            "event",
            "entry",
            "Y_true",
            "Y_pred",
            "scores",
            "similarity",
            "instances",
            "prototypes",
            "scores1",
            "scores2",
            "Y1",
            "Y2",
            "v",
            "G",
            "B",
            "risk",
            "times",
            "sample_weight",
            "params",
            "init_params",
        ),
        arrays,
    ),
    **dict.fromkeys(
        (
            "alpha",
            "beta",
            "strength",
            "scaling",
            "scale",
            "delta",
            "q",
            "smoothing",
            "tol",
            "threshold",
            "eta",
            "bandwidth",
            "output_bandwidth",
            "offset",
            "lam",
            "lams",
            "mu",
            "growth",
            "fraction",
            "low",
            "high",
            "solver_tol",
            "epsilon",
            "stepsize",
            "budget",
            "C",
            "eps_delta",
            "constant",
            "l1_ratio",
            "total",
            "factor",
            "quantile",
            "alphas",
            "betas",
            "step_size",
            "optimum",
            "strengths",
        ),
        numbers,
    ),
    **dict.fromkeys(
        (
            "maxiter",
            "history",
            "num",
            "num_subsamples",
            "seed",
            "degree",
            "num_starts",
            "k",
            "num_features",
            "solver_maxiter",
            "workers",
            "max_iter",
            "verbose",
            "random_state",
            "sizes",
            "view",
            "d",
            "chosen",
            "task",
        ),
        counts,
    ),
    **dict.fromkeys(("labels", "bag_ids", "order", "selected", "lists", "folds", "strata"), ids),
    **dict.fromkeys(
        (
            "intercept",
            "throw",
            "faithful",
            "polish",
            "continuation",
            "refit",
            "progress",
            "centered",
            "fit_intercept",
            "per_output",
            "linear",
            "has_aux",
        ),
        switches,
    ),
    **dict.fromkeys(
        ("mode", "average", "kernel", "input", "method", "schedule", "ties", "quantity", "selection", "loss"),
        choices,
    ),
    **dict.fromkeys(
        [
            *(
                "problem",
                "penalties",
                "penalty",
                "smooth",
                "groups",
                "views",
                "held_out",
                "parts",
                "solution",
            ),
            *("solutions", "result", "tunings", "optimizer", "measure", "ax"),
        ],
        objects,
    ),
    **dict.fromkeys(("fun", "prox", "projection", "value"), functions),
    **dict.fromkeys(("feature_names", "task_names"), names),
    "checkpoint": folders,
    "cv": splits,
    "class_weight": by_class,
    "scoring": scores,
    "batches": batches,
}


@functools.cache
def arguments_of(name: str) -> dict[str, Any]:
    """What may be replaced: the good value of every argument that has a kind."""
    function, good = CALLS[name]
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in KINDS:
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            found[parameter.name] = good.get(parameter.name, default)
    return found | {key: value for key, value in good.items() if key in KINDS}


# ------------------------------------------------------------------ a call


# The words for a part of an argument, or for it in the function that it is passed on to.
WORDS = {
    **{"batches": "batch", "sizes": "size", "params": "V", "init_params": "init", "measure": "measures"},
    **{"parts": "penalty", "y": "Y"},
    **{"random_state": "RandomState", "sample_weight": "Sample weights"},
}


class Outcome(NamedTuple):
    what: str  # "clear", "unclear", "raw", "accepted", "must be refused", "dishonest"
    told: str


def outcome(name: str, argument: str, drawn: Drawn) -> Outcome:
    """What comes of the call with the argument replaced."""
    function, good = CALLS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(**good | {argument: drawn.value})
            jax.block_until_ready(jax.tree.leaves(result))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        # Of X and y scikit-learn says itself what is wrong, in the words that its own checks look for.
        data = argument in ("X", "y") and ("/sklearn/" in file or file.endswith("_tables.py"))
        named = data or re.search(rf"\b({argument}|{WORDS.get(argument)})\b", str(error))
        ours = file.startswith(PACKAGE) or ("/sklearn/" in file and named)
        if not isinstance(error, (TypeError, ValueError)) or not ours:
            return Outcome("raw", told)
        return Outcome("clear" if named else "unclear", told)
    if drawn.never:
        return Outcome("must be refused", repr(result)[:200])
    if not honest(result):
        return Outcome("dishonest", repr(result)[:200])
    return Outcome("accepted", repr(result)[:200])


def honest(result: Any) -> bool:
    """Nothing that is not finite is said to have converged."""
    if isinstance(result, BaseEstimator):
        found = vars(result)  # a gap that is NaN comes with a warning
        return np.isnan(found.get("gap_", np.nan)) or bool(np.isfinite(found.get("coef_", 0.0)).all())
    if not isinstance(result, sj.Solution):
        return True
    return not np.asarray(result.converged).any() or bool(np.isfinite(np.asarray(result.params)).all())


# What is wrong elsewhere is right here: groups of several lengths, a function that is told of the progress,
# any rank, targets of which some are missing, what the kernel or a single output does not have.
RIGHT = {
    *(("from_lists", "lists"), ("multivariate.fit", "progress"), ("prox.l1", "x"), ("observed", "Y")),
    *(("OFALassoRegressor", "degree"), ("OFALassoRegressor", "output_bandwidth")),
    ("OFALassoRegressor", "beta"),
    *(("ProximalGradient", "init_params"), ("ByLeaf", "penalties")),
    *((name, "y") for name in CALLS if name.startswith("SparseRegressor")),
}
# Functions of W that are defined at what is not finite, where they are NaN or infinite.
UNCHECKED = {f"{name} {method}" for name in ("L21", "ExclusiveGroupL21") for method in PENALTY_METHODS}


def draw(rng: np.random.Generator) -> tuple[str, str, Drawn]:
    """A function, one of its arguments, a value in its place."""
    name = list(CALLS)[rng.integers(len(CALLS))]
    good = arguments_of(name)
    argument = list(good)[rng.integers(len(good))]
    default = np.ones(N) if good[argument] is None and KINDS[argument] is arrays else good[argument]
    values = KINDS[argument](rng, default)
    drawn = values[rng.integers(len(values))]
    known = isinstance(drawn.value, np.ndarray) and drawn.value.dtype.kind == "f"
    if (
        (drawn.value is None and good[argument] is None)
        or ((name, argument) in RIGHT and not isinstance(drawn.value, np.ma.MaskedArray))
        or (name in UNCHECKED and argument != "scaling" and known and drawn.value.ndim < 3)
    ):
        drawn = drawn._replace(never=False)
    return name, argument, drawn


LIMIT = 600  # seconds for a call, compilation on a busy machine included; then the process ends


def violations(
    calls: int, seed: int, log: Callable[[str], Any] | None = None
) -> tuple[collections.Counter, list[str]]:
    """How the calls ended, and those that must not end so; ``log`` is told of each call before and after."""
    rng = np.random.default_rng(seed)
    ends: collections.Counter = collections.Counter()
    wrong = []
    for i in range(calls):
        name, argument, drawn = draw(rng)
        value = re.sub(r"\s+", " ", repr(drawn.value))[:80]
        if log is not None:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            log(f"{name}({argument}={value}): ")
        found = outcome(name, argument, drawn)
        if log is not None:
            faulthandler.cancel_dump_traceback_later()
            log(re.sub(r"\s+", " ", f"{found.what}: {found.told}") + "\n")
        ends[found.what] += 1
        if found.what not in ("clear", "accepted"):
            wrong.append(f"{found.what}: {name}({argument}={value}): {found.told[:300]}")
        if i % 2000 == 1999:
            jax.clear_caches()
    return ends, wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--calls", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--log", type=argparse.FileType("w"), default=sys.stderr)
    given = options.parse_args()
    os.chdir(tempfile.mkdtemp())  # calls may write checkpoints
    ends, wrong = violations(
        given.calls, given.seed, functools.partial(print, end="", file=given.log, flush=True)
    )
    print("\n".join(sorted(set(wrong))))
    print(dict(ends))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
