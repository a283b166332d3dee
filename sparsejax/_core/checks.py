"""Checks of arguments; the message of each names the argument, what was given and what is allowed."""

import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.matrices.sharded import admitted, answer_of, check_placed, first_of, is_sharded, mesh_of
from sparsejax._core.precision import SWITCH, is_cast

DTYPES = (jnp.float32, jnp.float64)
INT32_MAX = np.iinfo(np.int32).max


def is_traced(x: Any) -> bool:
    """True if x is a tracer of a JAX transformation, whose value is not known."""
    return isinstance(x, jax.core.Tracer)


def without_gradient(x: Any) -> Any:
    """``x`` with its gradient stopped: concrete under an eager `jax.grad`, a tracer in jit and vmap."""
    return lax.stop_gradient(x) if is_traced(x) else x


_process: list[int] = []  # the process of the first call, in which JAX has started its threads


def check_process() -> None:
    """Raise in a forked child of a process that has used JAX: there JAX waits for ever.

    Raises:
      RuntimeError: this process was forked from that of the first call.
    """
    if not _process:
        _process.append(os.getpid())
    elif _process[0] != os.getpid():
        raise RuntimeError(
            "this process was forked from one that had used JAX, whose threads a fork does not copy, so that "
            'JAX would wait for ever: start processes by multiprocessing.get_context("spawn").'
        )


def is_eager(tree: Any) -> bool:
    """True if nothing in the tree is traced and the call is not made inside jit."""
    check_process()
    if any(map(is_traced, jax.tree.leaves(tree))):
        return False
    # Inside jit the result of any operation is traced. This operation is a transfer: it compiles nothing.
    return not is_traced(jax.device_put(on_device(0.0, np.dtype(np.float32))))


def default_device() -> Any:
    """The device or platform that the user has set for new arrays, or None."""
    config: Any = jax.config
    return config.jax_default_device


MAX_CACHED_SIZE = 4096  # entries of an array that `on_device` keeps in its cache


def on_device(value: float, dtype: np.dtype, shape: tuple[int, ...] = ()) -> jax.Array:
    """An array filled with one number, on the default device of JAX; for use outside jit.

    Small arrays are cached, since a transfer takes as long as the solve of a small problem.
    """
    make = _filled if math.prod(shape) <= MAX_CACHED_SIZE else _filled.__wrapped__
    # The dtype that JAX gives the array: float32 where 64-bit numbers are off, in this thread or context.
    return make(value, jax.dtypes.canonicalize_dtype(dtype), shape, default_device())


@functools.lru_cache(maxsize=256)
def _filled(value: float, dtype: np.dtype, shape: tuple[int, ...], device: Any) -> jax.Array:
    with jax.ensure_compile_time_eval():  # inside a jit, too
        return jax.device_put(np.full(shape, value, dtype))


def default_tol(dtype: Any) -> float:
    """The default tolerance of a certificate: 1e-6 in float64, 1e-4 in float32."""
    return 1e-6 if dtype == jnp.float64 else 1e-4


def is_sparse(x: Any) -> bool:
    """True for a matrix of scipy.sparse or of jax.experimental.sparse."""
    return hasattr(x, "toarray") or hasattr(x, "todense")


def as_numpy(name: str, x: Any) -> np.ndarray:
    """``x`` as an array of numpy of any dtype in the byte order of the machine; ``name`` is for errors."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: fill or drop what is masked.")
    try:
        found = np.asarray(x)
    except ValueError as error:  # ragged lists
        raise ValueError(f"{name} is not a rectangular array: {error}") from None
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


MAX_PLAIN_NUMBER = 1e30  # finite in float32, too


def as_float(
    name: str, x: Any, ndims: tuple[int, ...], dtype: Any = None, *, finite: bool = True
) -> jax.Array:
    """``x`` as a finite float32 or float64 array, of ``dtype`` if given; ``name`` is for errors.

    Integers and arrays of booleans are converted. Only concrete values are checked: by numpy, since inside
    jit even `jnp.isfinite` of a constant is traced, or by a program on the devices that hold a sharded array.

    Raises:
      TypeError: x is sparse, masked, complex, a single boolean, not of numbers, or floating but neither
        float32 nor float64.
      ValueError: its rank is not in ``ndims``, or a concrete value is not finite and ``finite`` is True.
    """
    check_process()
    if isinstance(x, float) and abs(x) < MAX_PLAIN_NUMBER and 0 in ndims:
        # Most strengths are such numbers, which pass all checks below.
        return jax.device_put(np.array(x, dtype=jax.dtypes.canonicalize_dtype(dtype or float)))
    if is_sparse(x):
        method = "toarray" if hasattr(x, "toarray") else "todense"
        raise TypeError(f"{name} is a sparse {type(x).__name__}; a dense array is needed: {name}.{method}().")
    if not isinstance(x, jax.Array):
        x = as_numpy(name, x)
    if not (jnp.issubdtype(x.dtype, jnp.number) or (x.dtype == bool and x.ndim > 0)):
        hint = ""
        if name == "Y" and x.dtype.kind in "USOT":
            hint = (
                " For two labels write Y = (labels == one_of_them).astype(float), for several Y = "
                "(labels[:, None] == numpy.unique(labels)).astype(float). The estimators of "
                "sparsejax.sklearn take labels as they are."
            )
        raise TypeError(f"{name} has dtype {x.dtype}; real numbers are needed.{hint}")
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} is complex ({x.dtype}); real numbers are needed.")
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {x.dtype}; float32 or float64 is needed.")
    if x.ndim not in ndims:
        allowed = " or ".join(f"{n}-d" for n in ndims)
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {allowed}.")
    if is_traced(x):
        check_placed(name, x)
    elif is_sharded(x) or mesh_of(x) is not None:
        x = admitted(name, x)
    if dtype is None:
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if finite and not is_traced(x):
        _check_finite(name, x, dtype)
    # An array that is not of JAX is copied, since on a CPU JAX would share its memory with the caller. numpy
    # makes the copy, since JAX would compile it; numpy converts scalars too, whose JAX type may be weak.
    by_jax = isinstance(x, jax.Array) and (is_traced(x) or x.ndim > 0)
    return x.astype(dtype) if by_jax else jax.device_put(np.array(x, dtype=dtype))


def as_float_on_host(name: str, data: Any) -> np.ndarray:
    """A concrete vector, checked and converted as by `as_float` but kept in numpy; copied only to convert."""
    data = as_numpy(name, data)  # raises for a masked array
    as_float(name, data[:0], (1,))  # raises for a wrong dtype or rank
    kind = data.dtype if jnp.issubdtype(data.dtype, jnp.floating) else jnp.result_type(float)
    dtype = jax.dtypes.canonicalize_dtype(kind)
    _check_finite(name, data, dtype)
    return data.astype(dtype, copy=False)


def known_cast(x: Any, dtype: Any) -> jax.Array:
    """``x`` in a dtype; numpy converts concrete values, since JAX would compile the conversion."""
    return jnp.asarray(x, dtype) if is_traced(x) else jax.device_put(np.asarray(x, dtype))


def _check_finite(name: str, x: Any, dtype: Any) -> None:
    """Raise if a concrete x has values that are not finite in this dtype."""
    with np.errstate(over="ignore"):
        if answer_of(_all_finite, x, dtype=dtype):
            return
        count, row, rest = answer_of(_not_finite, x, dtype=dtype)
    large = is_cast(x.dtype) and answer_of(_all_finite, x, dtype=np.dtype(np.float64))
    where = (int(row), *(int(i) for i in np.unravel_index(rest, x.shape[1:])))[: x.ndim]
    at = f", the first at {where}" if where else ""
    if large:
        raise ValueError(
            f"{name} has {int(count)} value(s) that are too large for float32{at}. {name} is float64, but "
            f"JAX's 64-bit numbers are off: write {SWITCH} at the start of the program, or rescale {name}."
        )
    raise ValueError(
        f"{name} has {int(count)} value(s) that are NaN, infinite or too large for "
        f"{dtype.name}{at}; all must be finite."
    )


def _all_finite(xp: Any, x: Any, dtype: Any) -> Any:
    return xp.isfinite(x.astype(dtype, copy=False)).all()


def _not_finite(xp: Any, x: Any, dtype: Any) -> tuple[Any, ...]:
    wrong = ~xp.isfinite(x.astype(dtype, copy=False))
    return wrong.sum(), *first_of(xp, xp.atleast_1d(wrong))


def refuse_boolean(name: str, x: Any) -> None:
    """Raise if x is True or False."""
    if isinstance(x, bool | np.bool_):
        raise TypeError(f"{name} must be a number, got {x!r}.")


def as_strength(name: str, x: Any, ndims: tuple[int, ...] = (0, 1)) -> jax.Array:
    """A finite strength >= 0 with a rank in ``ndims``, in the default float if it is not floating.

    A boolean is an error.
    """
    refuse_boolean(name, x)
    strength = as_float(name, x, ndims)
    if not is_traced(strength):
        if strength.ndim and strength.size == 0:
            raise ValueError(f"{name} is empty; a scalar or one value a row is needed.")
        if (least := answer_of(_least, strength)) < 0:
            raise ValueError(f"{name} must be >= 0, got {least:g}.")
    return strength


def as_nonnegative(name: str, x: Any, dtype: Any) -> jax.Array:
    """A finite scalar >= 0 of ``dtype``."""
    value = as_float(name, x, (0,), dtype)
    if not is_traced(value) and np.asarray(value) < 0:
        raise ValueError(f"{name} must be >= 0, got {np.asarray(value):g}.")
    return value


def as_positive(name: str, x: Any, dtype: Any) -> jax.Array:
    """A positive finite scalar of ``dtype``; a boolean is an error."""
    refuse_boolean(name, x)
    value = as_float(name, x, (0,), dtype)
    if not is_traced(value) and not np.asarray(value) > 0:
        raise ValueError(f"{name} must be > 0, got {np.asarray(value):g}.")
    return value


def check_array(W: Any, name: str = "W") -> None:
    """Raise unless W is an array of JAX or numpy, of real floating numbers; ``name`` is for errors."""
    if not isinstance(W, jax.Array | np.ndarray | np.generic):
        kind = type(W).__name__
        raise TypeError(f"{name} must be an array of JAX or numpy, got {kind}: use jnp.asarray({name}).")
    if isinstance(W, np.ma.MaskedArray):
        as_numpy(name, W)  # raises
    if not jnp.issubdtype(W.dtype, jnp.floating):
        raise TypeError(f"{name} has dtype {W.dtype}; float32 or float64 is needed.")


def check_step(name: str, x: Any) -> None:
    """Raise unless a concrete step size is a finite real number >= 0, of any floating dtype."""
    if is_traced(x):
        return
    value = as_numpy(name, x)
    real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
    if value.ndim or not real:
        raise TypeError(f"{name} must be a number, got {x!r}.")
    if not 0 <= value < np.inf:
        raise ValueError(f"{name} must be >= 0 and finite, got {x!r}.")


def check_params(W: Any, shape: tuple[int, ...]) -> None:
    """Raise unless W is of this shape."""
    given = W.shape if isinstance(W, jax.Array) else as_numpy("W", W).shape
    if given != shape:
        raise ValueError(f"W has shape {given}; one W has shape {shape}: for a batch of them use jax.vmap.")


def as_intercept(x: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An intercept of this shape, from an array of this shape or from one number for all columns."""
    b = jnp.asarray(x, dtype) if is_traced(x) else as_float("intercept", x, (0, 1), dtype)
    if b.shape not in ((), shape):
        raise ValueError(f"intercept has shape {b.shape}; it must be a number, or {shape}.")
    return jnp.broadcast_to(b, shape)


def as_weights(weights: ArrayLike, Y: jax.Array) -> jax.Array:
    """Sample weights >= 0, (n,) or the shape of Y, in the dtype of Y."""
    weights = as_float("weights", weights, (1, 2), Y.dtype)
    if weights.shape not in (Y.shape[:1], Y.shape):
        raise ValueError(
            f"weights has shape {weights.shape}; it must be one a row, {Y.shape[:1]}, or Y's {Y.shape}."
        )
    check_weights(weights)
    return weights


def check_weights(weights: Any) -> None:
    """Raise if a concrete weight is negative."""
    if not is_traced(weights) and (least := answer_of(_least, weights)) < 0:
        raise ValueError(f"weights must be >= 0, got {least:g}.")


def _least(xp: Any, x: Any) -> Any:
    return x.min()


def as_int(name: str, x: Any, low: int, high: int = INT32_MAX, *, floats: bool = False) -> int:
    """A concrete integer from ``low`` to ``high``, of Python, numpy or JAX; a boolean is an error.

    ``floats`` accepts whole floating numbers too, for counts written as 1e4.
    """
    if is_traced(x):
        raise TypeError(f"{name} must be known outside jit and vmap: no traced value is possible.")
    if type(x) is int and low <= x <= high:  # as nearly always; the rest takes longer
        return x
    value = as_numpy(name, x)
    whole = value.ndim == 0 and value.dtype.kind in ("iuf" if floats else "iu") and value == np.floor(value)
    if not whole or not low <= value <= high:
        bounds = f">= {low}" if high == INT32_MAX else f"from {low} to {high}"
        most = f"; the largest is {high}" if (whole or type(x) is int) and value > high else ""
        raise ValueError(f"{name} must be an integer {bounds}, got {x!r}{most}.")
    return int(value)


def as_number(name: str, x: Any) -> float:
    """A concrete real number, which may be NaN or infinite; a boolean is an error."""
    if is_traced(x):
        raise TypeError(f"{name} must be known outside jit.")
    value = as_numpy(name, x)
    if value.ndim or value.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a number, got {x!r}.")
    return float(value)


def check_bool(name: str, x: Any) -> None:
    """Raise unless x is True or False."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {x!r}.")


def check_choice(name: str, x: Any, allowed: tuple[str, ...]) -> None:
    """Raise unless x is one of the allowed strings."""
    if not isinstance(x, str) or x not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {x!r}.")


def check_comparable(y: np.ndarray, known: np.ndarray) -> None:
    """Raise unless the labels y can equal the ``known`` ones.

    Both must be texts or neither, unless one has the dtype object; y must not hold containers.
    """
    try:
        set(y.ravel().tolist())
    except TypeError as error:
        raise TypeError(f"y has labels that are no numbers or texts: {error}.") from None
    texts = {labels.dtype.kind in "US" for labels in (y, known) if labels.dtype.kind != "O"}
    if len(texts) > 1:
        raise TypeError(f"y has labels of dtype {y.dtype}; those of the fit have dtype {known.dtype}.")


def check_labels(
    Y: jax.Array, allowed: tuple[int, int], owner: str = "", *, name: str = "Y", others: str = ""
) -> None:
    """Raise if a concrete Y has a value that is not one of the two allowed labels.

    For the message: ``owner`` is the class that needs the labels, ``others`` a hint on what else is accepted.
    """
    if is_traced(Y):
        return
    if answer_of(_any_strange, Y, allowed=allowed):
        value = answer_of(_strange, Y, allowed=allowed)
        whose, more = f" for {owner}" if owner else "", f" ({others})" if others else ""
        raise ValueError(
            f"{name} must hold {allowed[0]} and {allowed[1]} only{whose}; it has {value:g}{more}."
        )


def _any_strange(xp: Any, y: Any, allowed: tuple[int, int]) -> Any:
    return ((y != allowed[0]) & (y != allowed[1])).any()


def _strange(xp: Any, y: Any, allowed: tuple[int, int]) -> Any:
    row, rest = first_of(xp, (y != allowed[0]) & (y != allowed[1]))
    return y.reshape(y.shape[0], -1)[row, rest]


def check_entry(entry: np.ndarray, time: np.ndarray) -> None:
    """Raise unless every row enters before its time; both are (n,)."""
    late = ~(np.isfinite(entry) & (entry < time))
    if late.any():
        i = int(np.argmax(late))
        raise ValueError(
            "entry must be before time, and finite: a row is at risk where entry < t <= time; row "
            f"{i} has entry {entry[i]:g} and time {time[i]:g}."
        )


def check_registered(name: str, x: Any, page: str) -> None:
    """Raise if the class of x is not registered with JAX as a pytree; ``page``: docs for the message."""
    if jax.tree_util.all_leaves([x]):
        kind = type(x).__name__
        raise TypeError(
            f"{name}: {kind} is not registered with JAX: write class {kind}(..., leaves=(...)), or use "
            f"jax.tree_util.register_dataclass; see {page}."
        )
