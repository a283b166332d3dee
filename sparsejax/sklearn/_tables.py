"""Tables of data for the solvers: in the precision of the data, each row once, in few different sizes."""

import contextlib
import hashlib
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from scipy import sparse
from sklearn.utils import Tags, assert_all_finite, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsejax._core.checks import as_numpy, check_comparable
from sparsejax._core.labels import complete_labels

FLOATS = [np.float64, np.float32]  # dtypes that validate_data leaves; others become the first
# Data up to this size are padded by rows and columns, which costs hardly any time.
MAX_PADDED_ROWS, MAX_PADDED_COLUMNS = 512, 32
MIN_TABLE_ROWS = 128
MAX_EXPONENT = 500  # of 2, for sample weights: squares of floats are finite and > 0 up to about this one
MAX_OFFSET = 4  # a column whose middle is farther from 0 than this many times its range is centred
# A sparse X with at most so many columns becomes dense if it then has at most so many numbers (128 MB in
# float64): the solvers for few features, which form X'X, are hundreds of times faster than first-order steps.
MAX_DENSE_COLUMNS, MAX_DENSE_SIZE = 511, 2**24

# The dtypes of dates and durations begin with these words in numpy, pandas and polars.
DATES = ("date", "time", "duration")
# Parts of the errors of numpy, pandas and scikit-learn for columns of text, of categories or of dates.
NOT_NUMBERS = (
    "could not convert string to float",
    "must be a string or a real number",
    "could not be promoted",
    "Cannot cast",
)


def check_unmasked(name: str, x: Any) -> None:
    """Raise a TypeError for a masked array of numpy."""
    if isinstance(x, np.ma.MaskedArray):
        as_numpy(name, x)


def check_dense(name: str, x: Any) -> None:
    """Raise a TypeError for a matrix or array of scipy.sparse."""
    if sparse.issparse(x):
        raise TypeError(f"{name} is a sparse {type(x).__name__}; a dense array is needed: {name}.toarray().")


def check_no_dates(name: str, x: Any) -> None:
    """Raise a TypeError for dates and durations, which numpy would convert to numbers of some unit."""
    if sparse.issparse(x):
        return
    try:
        dtypes, names = list(x.dtypes), names_of(x)  # of a DataFrame
    except (AttributeError, TypeError):
        dtypes, names = [np.asarray(x).dtype], None
    for j, dtype in enumerate(dtypes):
        if str(dtype).lower().startswith(DATES):
            where = "" if names is None else f" in column {names[j]!r}"
            raise TypeError(f"{name} has dtype {dtype}{where}; real numbers are needed.")


def as_real(name: str, x: Any) -> np.ndarray:
    """x as an array of float64; an array of objects that are numbers, as pandas has them, is accepted."""
    found = as_numpy(name, x)
    try:
        if found.dtype.kind in "biufO":
            return found.astype(float)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} has dtype {found.dtype}; real numbers are needed.")


def as_labels(y: Any, predicted: np.ndarray) -> np.ndarray:
    """The labels y, checked for a comparison with predictions: of their shape, none missing or infinite."""
    check_dense("y", y)
    y = complete_labels("y", y)
    if y.shape != predicted.shape:
        raise ValueError(f"y has shape {y.shape}; {predicted.shape} is needed for this X.")
    check_comparable(y, predicted)
    assert_all_finite(y, input_name="y")
    return y


def precision(X: Any) -> contextlib.AbstractContextManager[Any]:
    """A context for this thread that switches JAX's 64-bit numbers on for float64 data."""
    return jax.enable_x64(True) if X.dtype == np.float64 else contextlib.nullcontext()


def validated(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Call scikit-learn's ``validate_data``; its errors then name the column that cannot be used.

    Masked arrays, whose masks ``validate_data`` would drop, and dates are errors. A sparse X is accepted if
    the estimator's tags say so.
    """
    check_unmasked("X", X)
    check_unmasked("y", y)
    if isinstance(y, list | tuple) and not options.get("y_numeric"):
        y = complete_labels("y", y)  # numpy would turn NaN and numbers into texts if one label is a text
    if sparse.issparse(X) and X.dtype.kind in "biu":
        X = X.astype(float)  # before repeated entries are added up: True + True is 2
    try:
        takes = "csr" if get_tags(estimator).input_tags.sparse else False
        checked = validate_data(estimator, X, y, dtype=FLOATS, accept_sparse=takes, **options)
    except (ValueError, TypeError) as error:
        text = str(error)
        found = None
        if any(words in text for words in NOT_NUMBERS):
            found = _first_column(X, _is_not_a_number, "holds {!r}, which is not a number: encode it first")
        elif text.startswith("Input X contains"):
            found = _first_column(X, _is_not_finite, "holds {!r}")
        if found is None:
            raise
        first, *rest = text.split("\n")
        raise type(error)("\n".join([f"{first.rstrip('.')}. {found}", *rest])) from None
    check_no_dates("X", X)
    if options.get("y_numeric"):
        check_no_dates("y", y)
    return checked


class Estimator:
    """First base of the estimators: their tags, and a check of the rows that a fitted one is given."""

    _true_tags: ClassVar[tuple[str, ...]] = ()  # scikit-learn's names of them, as "input_tags.sparse"

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]  # of scikit-learn's bases
        for name in self._true_tags:
            part, flag = name.split(".")
            setattr(getattr(tags, part), flag, True)
        return tags

    def _rows(self, X: Any) -> Any:
        """X, validated; an error if the estimator is not fitted."""
        check_is_fitted(self)
        return validated(self, X, reset=False)


def names_of(X: Any) -> Any:
    """The names of the columns of a DataFrame; None for anything else."""
    try:
        return list(X.columns)
    except (AttributeError, TypeError):
        return None


def _first_column(X: Any, wrong: Any, what: str) -> str | None:
    """A sentence on the first column with a wrong value; None without one, or if X is no dense matrix."""
    if sparse.issparse(X) or np.ndim(X) != 2:
        return None
    names = names_of(X)
    for j, column in enumerate(np.asarray(X, dtype=object).T):
        for value in filter(wrong, column):
            return f"The column {j if names is None else repr(names[j])} {what.format(value)}."
    return None


def is_text(value: Any) -> bool:
    """Whether a label is a text that is not a number."""
    return isinstance(value, str) and _is_not_a_number(value)


def _is_not_a_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return True
    return False


def _is_not_finite(value: Any) -> bool:
    return not _is_not_a_number(value) and not np.isfinite(float(value))


def as_sample_weight(sample_weight: Any, n: int, outputs: int | None = None) -> np.ndarray:
    """Check sample weights: finite, >= 0 and not all zero; ones for None.

    The weights are (n,), or with ``outputs`` also (n, outputs).
    """
    if sample_weight is None:
        return np.ones(n)
    weights = as_real("sample_weight", sample_weight)
    allowed = [(n,)] if outputs is None else [(n,), (n, outputs)]
    if weights.shape not in allowed:
        more = "" if outputs is None else f", or ({n}, {outputs}), one for each entry of y"
        raise ValueError(
            f"sample_weight must have shape ({n},), one for each row{more}; got {weights.shape}."
        )
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight has a value that is NaN or infinite; all must be finite.")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must be >= 0, got {weights.min():g}.")
    if not weights.any():
        raise ValueError("sample_weight holds zeros only: at least one weight must be above zero.")
    if weights.ndim == 2 and not weights.any(axis=0).all():
        column = int(np.argmin(weights.any(axis=0)))
        raise ValueError(f"sample_weight holds zeros only in column {column}: leave that output out.")
    # A power of 2 scales huge or tiny weights without rounding, so that sums and products are finite and > 0.
    exponent = int(np.frexp(weights.max())[1])
    return np.ldexp(weights, int(np.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)) - exponent)


class Table(NamedTuple):
    """The distinct rows of the data with their weights, padded by rows of weight 0 and columns of zeros."""

    X: Any  # (n', d'), padded by columns of zeros; of scipy.sparse if the data are sparse with many columns
    Y: np.ndarray  # (n', k)
    # (n',) or (n', k), mean 1, so that a loss of default scale is a mean over the rows given
    weights: np.ndarray
    folds: np.ndarray  # (n',) integers, the fold of each row


def gathered(
    X: Any,
    Y: np.ndarray,
    weights: np.ndarray,
    *,
    folds: np.ndarray | None = None,
    counted: np.ndarray | None = None,
    widen: bool = True,
) -> Table:
    """The table of the rows ``counted``, (n,); by default of those with a weight that is not 0.

    Equal rows become one row, in an order that depends on the rows alone. So a row of weight k gives the same
    bits as k copies of the row, and the order of the rows does not matter. The table is padded to one of few
    sizes by rows of weight 0 and, with ``widen`` and few data, by columns of zeros, whose coefficients are 0:
    folds and subsets of similar size share a compiled program. A sparse X is padded by rows only; with few
    columns the table is dense. ``weights`` are by row, (n,), or by entry of Y, (n, k).
    """
    weighted = np.flatnonzero(weights.reshape(len(weights), -1).any(axis=1) if counted is None else counted)
    fold = np.zeros(X.shape[0], int) if folds is None else folds
    X, Y = np.ascontiguousarray(X) if isinstance(X, np.ndarray) else _canonical(X), np.asarray(Y, X.dtype)
    # Rows are compared and sorted by their digests: sorting the rows themselves takes ten times as long.
    digests = b"".join(_digest(*_entries(X, int(i)), Y[i], fold[i]) for i in weighted)
    _, first, number = np.unique(np.frombuffer(digests, "V16"), return_index=True, return_inverse=True)
    n, d = len(first), X.shape[1]
    rows, width = _table_shape(n, d)
    # Padding rows are copies of the first row, which do not change the largest entry of a column.
    ix = weighted[np.append(first, np.full(rows - n, first[0]))]
    mass = np.zeros((rows, *weights.shape[1:]))
    np.add.at(mass, number.ravel(), weights[weighted])
    # A power of 2 scales the weights without rounding, so that a sum of huge or tiny ones is finite and > 0.
    mass = np.ldexp(mass, -np.frexp(mass.max())[1])
    mean_one = (mass * (mass.size / mass.sum())).astype(X.dtype)
    if sparse.issparse(X):  # padded by empty rows; the number of entries is rounded up where X is stored
        table = X[weighted[first]]
        table.resize((rows, d))
        if d <= MAX_DENSE_COLUMNS and rows * d <= MAX_DENSE_SIZE:
            table = table.toarray()
    else:
        table = X[ix]
        if widen and width > d:
            table = np.pad(table, ((0, 0), (0, width - d)))
    return Table(table, Y[ix], mean_one, fold[ix])


def centred(X: Any, weights: np.ndarray, fit_intercept: bool) -> tuple[Any, np.ndarray]:
    """X with some columns shifted, and the numbers that were subtracted from its columns, (d,) in float64.

    A column that lies far from 0, compared with its range, would leave few digits to the solver: its middle
    is subtracted, which an intercept makes up for. The number is 0 for other columns, for a sparse X and
    without an intercept. Rows of weight 0 do not count. ``weights`` are (n,) or (n, k).
    """
    if not fit_intercept or sparse.issparse(X):
        return X, np.zeros(X.shape[1])
    counted = weights.reshape(len(weights), -1).any(axis=1)
    used = X if counted.all() else X[counted]
    low, high = (bound(used, axis=0).astype(float) for bound in (np.min, np.max))
    middle = low / 2 + high / 2
    middle[np.abs(middle) <= MAX_OFFSET * (high - low)] = 0
    return (X - middle).astype(X.dtype) if middle.any() else X, middle


def _canonical(X: Any) -> Any:
    """A sparse X by rows (CSR), with each entry once and without stored zeros."""
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def _entries(X: Any, i: int) -> tuple[np.ndarray, ...]:
    """The entries of row i, with their columns if X is sparse."""
    if isinstance(X, np.ndarray):
        return (X[i],)
    part = slice(X.indptr[i], X.indptr[i + 1])
    return X.indices[part].astype(np.int32), X.data[part]


def _digest(*parts: np.ndarray) -> bytes:
    return hashlib.blake2b(b"".join(part.tobytes() for part in parts), digest_size=16).digest()


def _table_shape(n: int, d: int) -> tuple[int, int]:
    """The numbers of rows and columns of a table for n rows of d features.

    Few data get one of three sizes. Otherwise n is rounded up to four leading binary digits, by at most 1/8.
    """
    if n <= MAX_PADDED_ROWS and d <= MAX_PADDED_COLUMNS:
        return max(1 << (n - 1).bit_length(), MIN_TABLE_ROWS), MAX_PADDED_COLUMNS
    step = 1 << max(n.bit_length() - 4, 0)
    return -(-n // step) * step, d


def filled(X: np.ndarray) -> np.ndarray:
    """X padded at its end with copies of its first row, to one of few numbers of rows."""
    rows = _table_shape(len(X), 1)[0]
    return X[np.append(np.arange(len(X)), np.zeros(rows - len(X), int))]
