"""Groups of features, for penalties under which the features of a group compete or vanish together.

A `Groups` lists the members of every group. Groups may overlap, a group listed twice counts twice, and a
feature in no group is not penalised by the penalties on groups. Sizes are static and indices are
leaves, so that a problem with groups passes through jit and vmap.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_number, as_numpy, check_bool, is_traced
from sparsejax._core.labels import complete_labels, indexed_labels
from sparsejax._core.pytree import Pytree

__all__ = ["Groups", "from_correlation", "from_labels", "from_lists", "label_views"]

MAX_DENSE_FEATURES = 1024  # features up to which the matrix of common groups is stored
MAX_FAMILIES = 64  # largest number of families of disjoint groups: each has one bit of a uint64
MAX_TILE_ENTRIES = 2**22  # correlations that are computed at once, or those of one column


class Groups(
    Pytree,
    leaves=("members", "group_ids", "sorted_members", "sorted_group_ids", "free", "common", "family"),
    static=("num_features", "num_groups", "disjoint", "num_families", "max_size"),
):
    r"""G groups of d features, as a list of memberships (i, g) in two orders.

    With M the (d, G) matrix of memberships (0 or 1), ``sums(r)`` is :math:`M^\top r` and ``spread(s)`` is
    :math:`Ms`, both in time proportional to the number m of memberships.

    Build groups by `from_lists`, `from_labels`, `from_correlation` or, for labels, `label_views`.

    Attributes:
      members, group_ids: (m,) int32, the memberships sorted by group.
      sorted_members, sorted_group_ids: (m,) int32, the memberships sorted by feature.
      free: (f,) int32, the features in no group.
      common: (d, d) int32, :math:`MM^\top`, how many groups two features share; (0, 0) if d > 1024 and
        in the result of `at`.
      family: (G,) int32, the family of each group; the groups of one family are disjoint.
      num_features, num_groups: d and G.
      num_families: the number of families; 65 if more than 64 are needed (``family`` is then 0).
      disjoint: True if no feature is in two groups.
      max_size: number of features of the largest group; in the result of `at` an upper bound.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> groups = sj.groups.from_lists([[0, 1], [1, 2]], num_features=4)
    >>> groups.num_groups, groups.disjoint, groups.free.tolist()
    (2, False, [3])
    >>> print(groups.sums(jnp.ones(4)))
    [2. 2.]
    """

    members: jax.Array
    group_ids: jax.Array
    sorted_members: jax.Array
    sorted_group_ids: jax.Array
    free: jax.Array
    common: jax.Array
    family: jax.Array
    num_features: int
    num_groups: int
    disjoint: bool
    num_families: int
    max_size: int

    def __init__(self, members: np.ndarray, group_ids: np.ndarray, num_features: int, num_groups: int):
        order = np.argsort(members, kind="stable")
        degree = np.bincount(members, minlength=num_features)
        size = num_features if num_features <= MAX_DENSE_FEATURES else 0
        common = np.zeros((size, size), np.int32)
        disjoint = bool((degree <= 1).all())
        family, num_families = np.zeros(num_groups, int), 1
        if size:
            for group in _by_group(members, group_ids, num_groups):
                common[np.ix_(group, group)] += 1
        if not disjoint:
            family, num_families = _families(_by_group(members, group_ids, num_groups), num_features)
        free = np.flatnonzero(degree == 0)
        indices = (members, group_ids, members[order], group_ids[order], free, common, family)
        self._set(
            **{name: jnp.asarray(x, jnp.int32) for name, x in zip(self._leaves, indices, strict=True)},
            num_features=int(num_features), num_groups=int(num_groups), disjoint=disjoint,
            num_families=num_families, max_size=int(np.bincount(group_ids, minlength=1).max()),
        )  # fmt: skip

    def sums(self, r: jax.Array) -> jax.Array:
        """The sum of r (d,) over each group, (G,)."""
        return jax.ops.segment_sum(r[self.members], self.group_ids, self.num_groups, indices_are_sorted=True)

    def maxima(self, r: jax.Array) -> jax.Array:
        """The maximum of r (d,) over each group, (G,)."""
        return jax.ops.segment_max(r[self.members], self.group_ids, self.num_groups, indices_are_sorted=True)

    def spread(self, s: jax.Array) -> jax.Array:
        """The sum of s (G,) over the groups of each feature, (d,)."""
        return jax.ops.segment_sum(
            s[self.sorted_group_ids], self.sorted_members, self.num_features, indices_are_sorted=True
        )

    def largest(self, s: jax.Array) -> jax.Array:
        """The maximum of s (G,) over the groups of each feature, (d,); -inf for a feature in none."""
        return jax.ops.segment_max(
            s[self.sorted_group_ids], self.sorted_members, self.num_features, indices_are_sorted=True
        )

    def connected_maxima(self, r: jax.Array) -> jax.Array:
        """The maximum of r (d,) over all features that overlapping groups connect with each feature."""

        def raised(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            r, _ = carry
            new = jnp.maximum(r, self.largest(self.maxima(r)))
            return new, jnp.any(new > r)

        return lax.while_loop(lambda c: c[1], raised, (r, jnp.ones((), bool)))[0]

    def check(self, owner: str, strength: jax.Array, params_shape: tuple[int, ...]) -> None:
        """Raise unless W of ``params_shape`` has d rows and ``strength`` is a scalar or one value a group."""
        if params_shape[0] != self.num_features:
            raise ValueError(f"{owner}: groups has {self.num_features} features; X has {params_shape[0]}.")
        if strength.shape not in ((), (self.num_groups,)):
            raise ValueError(
                f"{owner}: alpha has shape {strength.shape}; it must be a scalar or one value a "
                f"group, ({self.num_groups},)."
            )

    def at(self, ix: jax.Array) -> "Groups":
        """The groups restricted to the features ``ix``, renumbered; the index d is a feature in no group.

        Not for groups that need more than 64 families. The result has static sizes: one membership for each
        feature and family. Memberships that do not exist have the feature number len(ix) and the group number
        G, which sums leave out; free features that are not in ``ix`` have the number len(ix), too.
        """
        m, families = ix.shape[0], self.num_families
        place = self.sorted_members, self.family[self.sorted_group_ids]
        table = jnp.full((self.num_features, families), self.num_groups, jnp.int32)
        table = table.at[place].set(self.sorted_group_ids)
        ids = jnp.take(table, ix, axis=0, mode="fill", fill_value=self.num_groups).ravel()
        members = jnp.where(ids < self.num_groups, jnp.repeat(jnp.arange(m, dtype=jnp.int32), families), m)
        by_group, by_feature = jnp.argsort(ids), jnp.argsort(members)
        here = self.free[:, None] == ix[None].astype(jnp.int32)
        return self._replace(
            members=members[by_group], group_ids=ids[by_group],
            sorted_members=members[by_feature], sorted_group_ids=ids[by_feature],
            free=jnp.where(jnp.any(here, axis=1), jnp.argmax(here, axis=1), m).astype(jnp.int32),
            common=jnp.zeros((0, 0), jnp.int32), num_features=m,
        )  # fmt: skip

    def tolist(self) -> list[list[int]]:
        """The members of each group, as `from_lists` takes them; outside jit only."""
        groups = _by_group(np.asarray(self.members), np.asarray(self.group_ids), self.num_groups)
        return [group.tolist() for group in groups]


def check_groups(groups: object) -> None:
    """Raise unless ``groups`` is a `Groups`."""
    if not isinstance(groups, Groups):
        raise TypeError(
            f"groups must be built by sparsejax.groups (from_lists, ...), got {type(groups).__name__}."
        )


def _by_group(members: np.ndarray, group_ids: np.ndarray, num_groups: int) -> list[np.ndarray]:
    """The members of each group, from memberships sorted by group."""
    return np.split(members, np.cumsum(np.bincount(group_ids, minlength=num_groups)))[:num_groups]


def _families(groups: list[np.ndarray], num_features: int) -> tuple[np.ndarray, int]:
    """The family of each group, and the number of families, by a greedy algorithm.

    A group joins the first family that holds none of its features.
    """
    taken = np.zeros(num_features, np.uint64)  # bit f: the feature is in a group of family f
    family = np.zeros(len(groups), int)
    for g, group in enumerate(groups):
        used = int(np.bitwise_or.reduce(taken[group]))
        first = (~used & (used + 1)).bit_length() - 1
        if first >= MAX_FAMILIES:
            return np.zeros(len(groups), int), MAX_FAMILIES + 1
        family[g] = first
        taken[group] |= np.uint64(1 << first)
    return family, int(family.max()) + 1


def from_lists(lists: Iterable[Iterable[int]], num_features: int) -> Groups:
    """Groups by the indices of their members, ``[[0, 1], [1, 4]]``.

    Args:
      lists: for each group its features, 0-based. Groups may overlap; a group listed twice counts twice.
      num_features: d > 0.

    Raises:
      ValueError: an empty group, an index outside 0 ... d-1, a feature repeated inside a group.
      TypeError: indices that are not integers.

    >>> import sparsejax as sj
    >>> sj.groups.from_lists([[0, 1], [1, 2]], num_features=4).members.tolist()
    [0, 1, 1, 2]
    """
    return read_lists("lists", lists, num_features)


def read_lists(name: str, lists: Any, num_features: int) -> Groups:
    """Same as `from_lists`; ``name`` is the name of the lists in error messages."""
    num_features = as_int("num_features", num_features, 1)
    if isinstance(lists, str) or not isinstance(lists, Iterable):
        raise TypeError(f"{name} must be lists of features, one for each group, got {lists!r}.")
    rows = []
    for g, group in enumerate(lists):
        if isinstance(group, str) or not isinstance(group, Iterable):
            raise TypeError(f"{name} must hold a list for each group; group {g} is {group!r}.")
        row = as_numpy(f"{name}: group {g}", list(group))
        if row.size == 0:
            raise ValueError(f"{name}: group {g} is empty.")
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise TypeError(f"{name}: group {g} must list integer indices of features, got {row.tolist()}.")
        outside = row[(row < 0) | (row >= num_features)]
        if outside.size:
            allowed = f"0 ... {num_features - 1}, by num_features"
            raise ValueError(f"{name}: group {g} has index {outside[0]}; it must be in {allowed}.")
        if len(np.unique(row)) < len(row):
            values, counts = np.unique(row, return_counts=True)
            raise ValueError(f"{name}: group {g} has feature {values[counts > 1][0]} more than once.")
        rows.append(row.astype(int))
    members = np.concatenate(rows) if rows else np.zeros(0, int)
    ids = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return Groups(members, ids, num_features, len(rows))


def from_labels(labels: ArrayLike) -> Groups:
    """Disjoint groups, one for each label: all features that have the label.

    Args:
      labels: (d,), of any sortable type; groups are numbered in the sorted order of the labels.

    Returns:
      Disjoint `Groups`; every feature is in one group.

    Raises:
      ValueError: not one-dimensional, empty, or a NaN or None.

    >>> import sparsejax as sj
    >>> sj.groups.from_labels([0, 0, 1]).num_groups
    2
    """
    labels = complete_labels("labels", labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"labels must have one entry a feature, (d,), got shape {labels.shape}.")
    names, ids = indexed_labels("labels", labels)
    order = np.argsort(ids, kind="stable")
    return Groups(order, ids[order], len(labels), len(names))


def from_correlation(
    X: ArrayLike, threshold: float, *, centered: bool = True, weights: ArrayLike | None = None
) -> Groups:
    r"""A group for every pair of features whose absolute correlation exceeds ``threshold``.

    .. math:: R_{st} = |x_s^\top x_t| / (\|x_s\|\,\|x_t\|) > \text{threshold},

    of centred columns (Pearson) or, with ``centered=False``, of the columns as they are (cosine).
    The d x d matrix is never formed: memory holds X, a tile of correlations and the pairs. A feature that is
    correlated with no other is in no group.

    Args:
      X: (n, d).
      threshold: in (0, 1).
      centered: True follows the text of the paper; the numbers printed there (the example and Boston
        housing) are for columns that are not centred.
      weights: None, or (n,), >= 0 and not all 0, one for each row; 0 leaves a row out.

    Returns:
      `Groups` of two features each, sorted; no groups if no pair exceeds the threshold.

    Raises:
      TypeError: ``centered`` is not a bool; called in a transformation; as for data elsewhere.
      ValueError: a threshold outside (0, 1); fewer than two rows; weights of another length, negative, or
        all 0; as for data elsewhere.

    Warns:
      UserWarning: X has constant columns (zero columns if not centred): they have no correlation and are in
        no group.
    Source: Kong et al., AAAI 2016, Eq. (4), with one group for each pair.

    >>> import numpy as np, sparsejax as sj
    >>> X = np.array([[1.0, 2.0, 1.0], [-1.0, -2.0, 1.0], [2.0, 4.1, -1.0]])
    >>> sj.groups.from_correlation(X, 0.9).members.tolist()
    [0, 1]
    """
    X = as_float("X", X, (2,))
    if is_traced(X):
        raise TypeError("from_correlation counts groups in the data: call it outside jit and vmap.")
    check_bool("centered", centered)
    if isinstance(threshold, bool) or not 0 < as_number("threshold", threshold) < 1:
        raise ValueError(f"threshold must be in (0, 1), got {threshold!r}.")
    columns = np.asarray(X)
    n, d = columns.shape
    if n < 2 or d == 0:
        raise ValueError(f"X has shape {columns.shape}; at least two rows and one column are needed.")
    root = _root_weights(weights, X)
    counted = root[:, 0] > 0
    if not counted.all():  # else no copy of X
        columns, root = columns[counted], root[counted]
    # In units of its largest entry, by a power of 2, so that no square of a column over- or underflows.
    columns = np.ldexp(columns, -np.frexp(np.abs(columns).max(axis=0))[1])
    size = np.linalg.norm(root * columns, axis=0)
    if centered:
        columns = columns - np.average(columns, axis=0, weights=root[:, 0] ** 2)
    columns = root * columns
    norm = np.linalg.norm(columns, axis=0)
    # Centring turns a constant column into rounding errors, not into zeros.
    undefined = norm <= 4 * np.sqrt(n) * np.finfo(columns.dtype).eps * size
    if undefined.any():
        kind = "constant" if centered else "zero"
        warnings.warn(
            f"{int(undefined.sum())} {kind} column(s) of X, the first at {int(np.argmax(undefined))}, have "
            "no correlation: they are in no group.",
            stacklevel=2,
        )
    columns = np.where(undefined, 0, columns / np.where(undefined, 1, norm))
    found, rows = [], max(1, MAX_TILE_ENTRIES // d)
    for i in range(0, d, rows):  # in order: argwhere goes row by row
        tile = np.abs(columns[:, i : i + rows].T @ columns[:, i:])
        found.append(np.argwhere(np.triu(tile > threshold, 1)) + i)
    pairs = np.concatenate(found)
    return Groups(pairs.ravel(), np.repeat(np.arange(len(pairs)), 2), d, len(pairs))


def _root_weights(weights: ArrayLike | None, X: jax.Array) -> np.ndarray:
    """The square roots of the weights of rows, (n, 1); ones if weights is None."""
    n = X.shape[0]
    if weights is None:
        return np.ones((n, 1), X.dtype)
    w = np.asarray(as_float("weights", weights, (1,), X.dtype))
    if w.shape != (n,) or (w < 0).any() or not w.any():
        raise ValueError(f"weights must be >= 0, one for each of X's {n} rows and not all 0; got {w!r}.")
    # Divided by an even power of 2, so that the roots keep their digits and no sum of weights overflows.
    return np.sqrt(np.ldexp(w, -(np.frexp(w.max())[1] // 2 * 2)))[:, None]


def label_views(*sizes: int) -> tuple[Groups, ...]:
    """Groups of the labels of a product of views, one `Groups` for each view.

    A label is a tuple of one label from each view, numbered as by `numpy.ravel_multi_index`: with two views
    (i, j) is column ``i * sizes[1] + j``. View v groups the columns with the same label of view v.

    Args:
      sizes: the number of labels of each view, >= 1; at least one view.

    Raises:
      ValueError: no view, or a size that is not an integer >= 1.
    Source: Chen et al., ACM MM 2011, Section 2.2, for two views.

    >>> import sparsejax as sj
    >>> first, second = sj.groups.label_views(2, 3)
    >>> first.group_ids.tolist(), second.num_groups
    ([0, 0, 0, 1, 1, 1], 3)
    """
    if not sizes:
        raise ValueError("label_views needs the size of at least one view.")
    sizes = tuple(as_int(f"size of view {v}", size, 1) for v, size in enumerate(sizes))
    return tuple(from_labels(labels) for labels in np.unravel_index(np.arange(np.prod(sizes)), sizes))
