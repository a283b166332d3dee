"""The protocol of penalties: required methods, optional groups of methods, and the use of each group."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_strength, is_traced, known_cast
from sparsejax._core.linalg import columns, like, opaque
from sparsejax._core.matrices.sharded import answer_of
from sparsejax._core.protocol import Protocol
from sparsejax._core.pytree import movable
from sparsejax.groups import Groups
from sparsejax.penalties._rules import leaf_names, penalised


class RowNorm(NamedTuple):
    r"""Strengths of a penalty :math:`\sum_b \alpha_b\|W_b\|_F + \tfrac{m_b}{2}\|W_b\|_F^2`.

    The blocks b are rows or groups of rows. With ``entries`` the penalty has the further part
    :math:`\sum_i \lambda_i\|w_i\|_1`, over the rows of W.

    Args:
      alpha: >= 0, shape (), or one value for each block, a row or, with ``groups``, a group.
      ridge: m >= 0, shape () or one value for each block; None: there are no squares.
      groups: disjoint groups that hold every feature; None: every row is a block.
      entries: lambda >= 0, shape () or (d,); None: there is no such term.
      nonnegative: whether g is infinite where an entry of W is negative.

    >>> import sparsejax as sj
    >>> (sj.penalties.L21(2.0) + sj.penalties.SquaredL2(0.5)).row_norm((3, 2))[1].item()
    0.5
    """

    alpha: ArrayLike
    ridge: ArrayLike | None = None
    groups: Groups | None = None
    entries: ArrayLike | None = None
    nonnegative: bool = False


def of_each_block(strength: ArrayLike | None, count: int, dtype: Any) -> jax.Array:
    """A strength of a `RowNorm` as an array (count,); 0 where it is None."""
    return jnp.broadcast_to(jnp.asarray(0 if strength is None else strength, dtype), (count,))


class Penalty(Protocol):
    r"""Base of every penalty g(W): a convex function with an exact prox.

    Required:

    * ``value(W)`` -> (): g(W);
    * ``prox(V, scaling=1.0)``: the argmin over W of :math:`\tfrac12\|W-V\|_F^2 + \text{scaling}\cdot g(W)`,
      the shape and dtype of V.

    These two are enough: solutions are then judged by their residual (``gap`` is NaN) and differentiated
    through the prox. All other methods come in groups; a class defines all names of a group or none:

    * *dual*, for a duality gap: ``conjugate(Z, aux=None)`` -> (), :math:`g^*(Z)` or an upper bound on it, for
      a Z at which it is finite (``aux``: a point at which Z is nearly a subgradient, or parts that sum to Z,
      one for each term); ``dual_scale(Z)``, or with several terms ``dual_scale(Z, parts)``: the largest s at
      which ``conjugate(s * Z)`` is finite, inf if there is no largest; ``finite_conjugate`` (bool): whether
      the conjugate can be finite for every Z, as for a square; for a Z with the ``dual_scale`` inf a gap is
      known with any convex loss;
    * *support*, for a cheaper derivative: ``smooth_where(W)``: boolean, shape of W: the entries in which g is
      smooth at W; the other entries stay at 0 nearby;
    * *terms*, if g has no exact prox but its parts have: ``terms``: a tuple of penalties whose sum is g;
    * *free*: ``free``: (f,) indices of the features that are not penalised;
    * *dual norm*, for `sparsejax.lambda_max`: ``dual_norm(Z)`` -> (): the smallest value of the strength (the
      first one in ``strengths``) at which 0 is the prox of Z;
    * *row norm*, for `sparsejax.variational_newton` and `sparsejax.prox_newton`: ``row_norm(params_shape)``
      -> `RowNorm`, if g is the function of a `RowNorm` for a W of this shape; else None;
    * *sparse rows*, for `sparsejax.working_set`, if g makes rows zero: ``row_slopes(Z, W)``: (d,), at most 1
      where a zero row of W stays zero if Z is minus the gradient (W matters only if the slope of a row
      depends on other rows); ``rows_at(ix)``: the penalty of a W with these rows only; the index d stands for
      no row;
    * *units*: ``degrees``, see below.

    ``strengths`` names the leaves >= 0 that scale g: `sparsejax.tune` tunes them. If one is negative or
    infinite under jit, gap and residual are NaN. Other floating leaves (bounds, widths) are never tuned, and
    may be negative. ``degrees`` has for each strength the degree of homogeneity in W of the term
    that it scales (1 for a norm, 2 for a square); solvers use it to work in units of the data.
    ``check(params_shape)`` raises if g does not fit W.

    A class is registered with JAX by its keyword ``leaves``, ``class C(sj.Penalty, leaves=("a",))``, or by
    its author, as a frozen dataclass under `jax.tree_util.register_dataclass` or by
    `jax.tree_util.register_pytree_node_class`.

    Raises:
      TypeError: when a class is made without a required method, with a part of a group, or as a subclass of
        another penalty that replaces a part of a group and inherits the rest, or if ``strengths`` names
        something else than leaves (of a class that its author registers: when a solver gets the penalty);
        see docs/adding-a-penalty.md.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> class Ridge(sj.Penalty, leaves=("strength",)):
    ...     strengths = ("strength",)
    ...     def value(self, W):
    ...         return self.strength / 2 * jnp.sum(W * W)
    ...     def prox(self, V, scaling=1.0):
    ...         return V / (1 + scaling * self.strength)
    >>> problem = sj.Problem(sj.losses.SquaredLoss(jnp.eye(3), jnp.ones(3)), Ridge(1.0))
    >>> print(sj.solve(problem).params.round(3))
    [0.25 0.25 0.25]
    """

    _required: ClassVar[tuple[str, ...]] = ("value", "prox")
    _groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "dual": ("conjugate", "dual_scale", "finite_conjugate"),
        "support": ("smooth_where",),
        "terms": ("terms",),
        "free": ("free",),
        "dual norm": ("dual_norm",),
        "row norm": ("row_norm",),
        "sparse rows": ("row_slopes", "rows_at"),
        "units": ("degrees",),
    }
    _page: ClassVar[str] = "docs/adding-a-penalty.md"

    strengths: ClassVar[tuple[str, ...]] = ()
    degrees: ClassVar[tuple[int, ...]] = ()
    _absolute: ClassVar[bool] = False  # whether g(W) depends on |W| alone and does not decrease in it
    _offset: bool = False  # whether s -> conjugate(s Z), where finite, is piecewise affine and need not be 0
    _valued: bool = True  # whether ``value`` is known; False for a prox without a value, which counts as 0
    __array_ufunc__: ClassVar[None] = None  # numpy leaves ``array * penalty`` to `__rmul__`, which refuses
    __add__: ClassVar[Callable[[Any, Any], Any]]  # _sum.py sets both: they return a `Sum`
    __radd__: ClassVar[Callable[[Any, Any], Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        slopes = vars(cls).get("row_slopes")
        if slopes is not None and len(inspect.signature(slopes).parameters) == 2:  # of Z alone
            # A subclass may define row_slopes(Z), but callers pass W too. mypy forbids to assign a method.
            cls.row_slopes = lambda self, Z, W=None: slopes(self, Z)  # type: ignore[method-assign]
        super().__init_subclass__(**options)
        named: Any = cls.strengths  # may be a property, in a class whose parts have the strengths
        if isinstance(named, str):
            raise TypeError(f"strengths of {cls.__name__} must be a tuple of names, got {named!r}.")
        listed = named if isinstance(named, tuple | list) and cls._frozen else ()
        absent = [name for name in listed if name not in cls._leaves]
        if absent:
            raise TypeError(
                f"strengths of {cls.__name__} names {', '.join(absent)}: no leaf has such a name."
            )

    def value(self, W: Any) -> jax.Array:
        """g(W), shape ()."""
        raise NotImplementedError

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        """The exact proximal point of V at step size ``scaling``; shape and dtype of V."""
        raise NotImplementedError

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if the penalty does not fit parameters of this shape."""

    def __mul__(self, factor: Any) -> Any:
        """``factor`` times this penalty: a penalty with all strengths multiplied by ``factor``, a number."""
        if isinstance(factor, Penalty):
            return NotImplemented
        factor = as_strength("the factor of a penalty", factor)
        if factor.ndim:
            raise ValueError(f"the factor of a penalty must be a number, got shape {factor.shape}.")
        return self._times(factor)

    __rmul__ = __mul__

    def _join(self, others: list[Any], positive: bool) -> tuple[Any, list[Any], bool]:
        """Join some of ``others``, and W >= 0 if ``positive``, with this penalty in one exact prox.

        Returns the joint penalty, the others that are left, and whether W >= 0 is left to require.
        """
        return self, others, positive

    def _by_row(self, factor: jax.Array) -> "Penalty":
        """The penalty, a sum over rows, with all strengths times a factor (d,)."""
        return scale_strengths(self, [factor] * len(self.strengths))

    def _times(self, factor: jax.Array) -> "Penalty":
        """``factor``, shape (), times this penalty."""
        if not self.strengths:
            raise TypeError(f"{type(self).__name__} names no strengths that could be multiplied.")
        return scale_strengths(self, [factor] * len(self.strengths))

    @property
    def terms(self) -> tuple[Any, ...]:
        """Penalties with an exact prox whose sum is g; here g itself."""
        return (self,)

    @property
    def free(self) -> jax.Array:
        """The indices of the unpenalised features, (f,); here none."""
        return jnp.zeros(0, jnp.int32)

    # ------------------------------------------------------------------ called if ``provides`` has the group

    finite_conjugate: bool = False

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """g*(Z) or an upper bound on it, shape ()."""
        raise NotImplementedError

    def dual_scale(self, Z: jax.Array) -> jax.Array:
        """The largest s >= 0 at which ``conjugate(s * Z)`` is finite, (); inf if there is no largest."""
        raise NotImplementedError

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest value of the first strength at which 0 is the proximal point of Z, shape ()."""
        raise NotImplementedError

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        """The `RowNorm` whose function g is for a W of this shape; None if there is none."""
        raise NotImplementedError

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), at most 1 where a zero row of W stays zero if Z is minus the gradient; W None means W = 0."""
        raise NotImplementedError

    def rows_at(self, ix: jax.Array) -> "Penalty":
        """The penalty of a W with the rows ``ix`` only; the index d stands for no row."""
        raise NotImplementedError

    def smooth_where(self, W: Any) -> Any:
        """The entries in which g is smooth at W, boolean; the other entries stay at 0 nearby."""
        raise NotImplementedError

    # ------------------------------------------------------------------ called by the rules of _rules.py

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """Boolean (d,) or (k, d): the rows or entries that g depends on; Wt (k, d) for shape and dtype."""
        return jnp.ones(Wt.shape[1:], bool)

    def _covers(self, Wt: jax.Array) -> jax.Array:
        """Boolean (d,) or (k, d): rows or entries that can be the only nonzero ones of a subgradient of g."""
        return penalised(self, Wt)

    def _cleared(self, Z: jax.Array) -> jax.Array:
        """Z, nearly a subgradient of g, projected onto the span of all subgradients, if that is known."""
        return Z

    def _inside(self, W: jax.Array) -> jax.Array:
        """Boolean, shape of W: where g is known to be smooth at W. The other entries may leave 0 nearby."""
        return self.smooth_where(W) if "support" in self.provides else jnp.zeros(W.shape, bool)

    def _unpenalised(self, d: int, dtype: Any) -> jax.Array:
        """The directions in which g is constant: indices of rows (f,), or orthonormal columns (d, f)."""
        return self.free

    def _feasible(self, W: Any) -> Any:
        """A point near W at which g is finite: W, or the prox of W at a scaling of 0 if g(W) is infinite."""
        outside, scaling = self.value(W) == jnp.inf, jnp.zeros((), jax.tree.leaves(W)[0].dtype)
        return jax.tree.map(lambda w, near: jnp.where(outside, near, w), W, self.prox(W, scaling))

    def _in_units(self, sigma: jax.Array, gamma: jax.Array) -> Any:
        r"""The penalty V -> gamma g(sigma V) / sigma^2: gamma sigma^(p-2) times each strength of degree p."""
        # `opaque` keeps XLA from merging the factor into a product that underflows, see `linalg.unit_of`.
        factors = [gamma if degree == 2 else opaque(gamma * sigma ** (degree - 2)) for degree in self.degrees]
        return scale_strengths(self, factors)

    def _row_units(self, wanted: Callable[[], jax.Array]) -> jax.Array | None:
        """Units (d,) for `_rescaled`, near those that ``wanted()`` returns; None if g allows none."""
        return None

    def _row_strengths(self, d: int) -> jax.Array | None:
        """Strengths of norms, () or one for each of the d rows; None if g has no such strength."""
        return None

    def _rescaled(self, units: jax.Array) -> Any:
        """The penalty of V = W * units (d,), row by row: a strength of degree p is divided by units^p."""
        return scale_strengths(self, [1 / units**degree for degree in self.degrees])

    def _by_entry(self, params_shape: tuple[int, ...]) -> Any:
        """The penalty with strengths by column (k,) as (1, k), so that they are not taken for rows."""
        return self

    def _prox_start(self, V: jax.Array) -> Any:
        """The argument ``warm`` for the first call of `_prox_columns`; here the prox is not iterative."""
        return ()

    def _prox_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The prox of Vt, the transpose of a V in the shape of W, and ``warm`` for the next call.

        It is nearly exact if ``warm`` comes from a nearby call. Solvers iterate on transposes.
        """
        return columns(self.prox(like(Vt, W), scaling)), warm

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Callable[[jax.Array], jax.Array]:
        r"""Approximately :math:`V \mapsto J^{1/2}V`, J the derivative of the prox where its value is W."""
        return lambda V: V

    def _for_shape_of(self, W: Any) -> Any:
        """The penalty that is to be applied to W: here itself; a `Sum` wraps users' parts if W is (d,)."""
        return self

    def _as_given(self) -> Any:
        """The inverse of `_for_shape_of`."""
        return self

    def _leaf_names(self) -> list[str]:
        """The name of each leaf: its attribute, and in a `Sum` its term, "strength of L1"."""
        paths = jax.tree_util.tree_flatten_with_path(self)[0]
        return [jax.tree_util.keystr(key).lstrip(".") for key, _ in paths]


def split_strengths(penalty: Penalty) -> tuple[tuple[jax.Array, ...], Callable[[Any], Any]]:
    """The strengths of a penalty, in the order of its leaves, and the function that replaces them.

    A name in ``strengths`` is a leaf, or an attribute that holds penalties; then all their strengths count.
    """
    chosen = strength_numbers(penalty)
    strengths, rebuild = movable(penalty, tuple(i in chosen for i in range(len(jax.tree.leaves(penalty)))))
    return tuple(strengths), rebuild


def cast_strengths(penalty: Penalty, dtype: Any) -> Any:
    """The penalty with strengths of this dtype, so that strengths of any dtype share one program."""
    if all(isinstance(leaf, jax.Array) and leaf.dtype == dtype for leaf in jax.tree.leaves(penalty)):
        return penalty  # the general case below takes longer
    strengths, rebuild = split_strengths(penalty)
    if all(jnp.result_type(strength) == dtype for strength in strengths):
        return penalty
    return rebuild([known_cast(strength, dtype) for strength in strengths])


def scale_strengths(penalty: Penalty, factors: Sequence[jax.Array]) -> Any:
    """The penalty with the strengths under each name in ``strengths`` multiplied by its factor."""
    leaves, treedef = jax.tree.flatten(penalty)
    numbered = _numbered(penalty)
    for name, factor in zip(penalty.strengths, factors, strict=True):
        for number in _strengths_under(getattr(numbered, name)):
            leaf = jnp.asarray(leaves[number])
            leaves[number] = leaf * factor.astype(leaf.dtype)
    return jax.tree.unflatten(treedef, leaves)


def _numbered(penalty: Penalty) -> Any:
    """The penalty with each leaf replaced by its number in the order of the leaves."""
    treedef: Any = jax.tree.structure(penalty)
    return jax.tree.unflatten(treedef, range(treedef.num_leaves))


def strength_numbers(penalty: Penalty) -> list[int]:
    """The numbers of the leaves that are strengths, in the order of the leaves."""
    return sorted(set(_strength_numbers(_numbered(penalty))))


def _strength_numbers(tree: Any) -> list[int]:
    """The numbers of the leaves that are strengths, for a tree that `_numbered` has made."""
    parts = [x for x in jax.tree.leaves(tree, is_leaf=_is_penalty) if _is_penalty(x)]
    return [n for part in parts for name in part.strengths for n in _strengths_under(getattr(part, name))]


def _strengths_under(held: Any) -> list[int]:
    """The numbers of the leaves of ``held`` or, if it holds penalties, of their strengths."""
    inner = any(map(_is_penalty, jax.tree.leaves(held, is_leaf=_is_penalty)))
    return _strength_numbers(held) if inner else [int(leaf) for leaf in jax.tree.leaves(held)]


def _is_penalty(x: Any) -> bool:
    return isinstance(x, Penalty)


def strengths_valid(penalty: Penalty) -> jax.Array:
    """() boolean: every strength is finite and >= 0."""
    valid = jnp.ones((), bool)
    for leaf in split_strengths(penalty)[0]:
        valid &= all_valid(jnp, jnp.asarray(leaf))
    return valid


def with_valid_strengths(penalty: Penalty) -> tuple[Any, jax.Array]:
    """The penalty with 1 for each strength that is not allowed, and whether all are: finite and >= 0, ()."""
    given, rebuild = split_strengths(penalty)
    allowed = [jnp.where(jnp.isfinite(strength) & (strength >= 0), strength, 1) for strength in given]
    return rebuild(allowed), strengths_valid(penalty)


def all_valid(xp: Any, x: Any) -> Any:
    """Whether all numbers are finite and >= 0; xp is numpy or `jax.numpy`."""
    return (xp.isfinite(x) & (x >= 0)).all()


def check_strengths(caller: str, penalty: Penalty) -> None:
    """Raise if a strength is negative or not finite: constructors check nothing under `jax.vmap`."""
    leaves, names = jax.tree.leaves(penalty), leaf_names(penalty)
    for number in strength_numbers(penalty):
        leaf = leaves[number]
        if not is_traced(leaf) and not answer_of(all_valid, leaf):
            raise ValueError(f"{caller}: {names[number]} must be finite and >= 0, got {leaf}.")
