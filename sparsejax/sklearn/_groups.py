"""Groups of columns from what users have: indices, names, prefixes of names, a ColumnTransformer."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer

from sparsejax.groups import Groups, read_lists

SEPARATOR = "__"  # between the names of a transformer and of its column, in scikit-learn


def as_groups(groups: Any, names: Any, num_features: int) -> Groups:
    """The groups of the columns of X.

    Args:
      groups: a list with an entry for each group: a list of indices or names of columns, or a text, with
        which the names of its columns begin; one text alone; a ColumnTransformer, or the names of its output
        columns, (num_features,): a group for each transformer.
      names: the names of the columns, or None.
      num_features: the number of columns.

    Returns:
      `Groups`, in which each column that is in none of the given groups is a group of its own.

    Raises:
      TypeError, ValueError: groups are not as above; X has no such column, or no names.
    """
    if groups is None:
        raise ValueError("penalty='group_lasso' needs groups, such as groups=[[0, 1], [2, 3]].")
    lists = _lists(groups, None if names is None else [str(name) for name in names], num_features)
    known = read_lists("groups", lists, num_features)  # checks the indices
    alone = np.setdiff1d(np.arange(num_features), known.members)
    return read_lists("groups", [*lists, *alone[:, None]], num_features)


def _lists(groups: Any, names: list[str] | None, num_features: int) -> list[list[int]]:
    if isinstance(groups, ColumnTransformer):
        return _of_transformers(groups, names, num_features)
    if isinstance(groups, str):
        groups = [groups]
    if isinstance(groups, dict) or not isinstance(groups, Iterable):
        raise TypeError(f"groups must be a list of groups of columns, got {groups!r}.")
    entries = list(groups)
    if not entries:
        raise ValueError("groups is empty: it needs at least one group of columns.")
    texts = [isinstance(entry, str) for entry in entries]
    if all(texts) and len(entries) == num_features and all(SEPARATOR in entry for entry in entries):
        # These are the names of a transformer's output columns, unless they are prefixes of names of X: then
        # some column of X begins with one of them, and the columns of X are not just these names.
        columns = names or []
        known = any(column.startswith(tuple(entries)) for column in columns)
        if not known or set(entries) == set(columns):
            of = columns if known else entries  # by name if X has these names, in any order
            labels = [entry.split(SEPARATOR)[0] for entry in entries]
            return [_starting(of, label + SEPARATOR) for label in dict.fromkeys(labels)]
    return [_columns(g, entry, names) for g, entry in enumerate(entries)]


def _of_transformers(transformer: Any, names: list[str] | None, num_features: int) -> list[list[int]]:
    """A group for each transformer that has columns, by the names of X or, without them, by its outputs."""
    labels = [str(name) for name, *_ in transformer.transformers] + ["remainder"]
    if names is not None and any(
        name.startswith(f"{label}{SEPARATOR}") for name in names for label in labels
    ):
        found = [_starting(names, label + SEPARATOR) for label in labels]
    elif "output_indices_" in vars(transformer):
        slices = transformer.output_indices_
        found = [list(range(part.start, part.stop)) for part in slices.values()]
        if sum(map(len, found)) != num_features:
            raise ValueError(
                f"groups: the ColumnTransformer has {sum(map(len, found))} output columns, and X has "
                f"{num_features}."
            )
    else:
        raise ValueError(
            "groups: the ColumnTransformer is not fitted, and X has no columns named by its transformers: "
            'give it verbose_feature_names_out=True and set_output(transform="pandas").'
        )
    return [columns for columns in found if columns]


def _starting(names: list[str], prefix: str) -> list[int]:
    return [j for j, name in enumerate(names) if name.startswith(prefix)]


def _columns(g: int, entry: Any, names: list[str] | None) -> list[int]:
    """The indices of the columns of one group."""
    if not isinstance(entry, Iterable):
        raise TypeError(f"groups: group {g} must list columns, or begin their names, got {entry!r}.")
    if isinstance(entry, str):
        if names is None:
            raise ValueError(
                f"groups: group {g} is the prefix {entry!r}, but X has no names: use a DataFrame."
            )
        if not entry or not (found := _starting(names, entry)):
            raise ValueError(f"groups: no column of X has a name that begins with {entry!r}.")
        return found
    return [_column(g, one, names) for one in entry]


def _column(g: int, one: Any, names: list[str] | None) -> Any:
    if not isinstance(one, str):
        return one
    if names is None:
        raise ValueError(f"groups: group {g} has the column {one!r}, but X has no names: use a DataFrame.")
    if one not in names:
        raise ValueError(f"groups: group {g} has the column {one!r}, which X does not have.")
    return names.index(one)
