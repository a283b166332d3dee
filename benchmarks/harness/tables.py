"""Tables: markdown from finished results, and plain text printed row by row while a script runs."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]]) + "\n"


def mean_error(values: Any) -> tuple[Any, Any]:
    """Mean and standard error over the first axis, NaN of a single value."""
    values = np.asarray(values, float)
    n = len(values)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.full(values.shape[1:], np.nan)


def score(values: Any, best: float = np.inf) -> str:
    """Mean ± standard error, in bold if the mean is the ``best`` (or above, or less by rounding only)."""
    mean, error = mean_error(values)
    return f"**{mean:.1f}** ± {error:.1f}" if mean >= best - 1e-9 else f"{mean:.1f} ± {error:.1f}"


def gain(differences: Any) -> str:
    """Mean ± standard error of paired differences, with the sign."""
    mean, error = mean_error(differences)
    return f"{mean:+.1f} ± {error:.1f}"


class Printed:
    """A table whose rows are printed as soon as they are known.

    Columns are given as heading and format, whose alignment and width (``">9.3f"``: right, 9) the heading
    takes too. None is printed as a dash.
    """

    def __init__(self, *columns: tuple[str, str]):
        self.formats = [spec for _, spec in columns]
        print("".join(format(heading, _layout(spec)) for heading, spec in columns), flush=True)

    def row(self, *values: Any) -> None:
        """Print a row."""
        cells = (
            format("-", _layout(spec)) if value is None else format(value, spec)
            for value, spec in zip(values, self.formats, strict=True)
        )
        print("".join(cells), flush=True)


def _layout(spec: str) -> str:
    return re.sub(r"(\.\d+)?[a-z]?$", "", spec)
