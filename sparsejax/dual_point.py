"""Dual points of a problem, from which the duality gap is computed: scaled, or projected for free features.

A feature is free if it is not penalised.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import apply_if, columns, like, safe_divide
from sparsejax.losses import Facts, quadratic_scaling
from sparsejax.penalties import Penalty, shared, unpenalised, unpenalised_entries
from sparsejax.problem import Problem, even_strengths

Parts = tuple[jax.Array, ...]  # an array for each term of the penalty
MAX_FREE_FEATURES = 64  # largest number of features of strength 0, in each column of W, with a known gap


class Free(NamedTuple):
    """The entries of W whose strengths are 0, where only the running program knows which these are."""

    entries: jax.Array  # (d,) or (k, d) boolean
    some: jax.Array  # () boolean: there is such an entry
    known: jax.Array  # () boolean: at most `MAX_FREE_FEATURES` in each column, and the loss has a basis


class DualPoint(NamedTuple):
    """A dual point, scaled to be feasible: ``P - D = g(W) + <gradient, W> + g*(-scaled) + change``."""

    gradient: jax.Array  # shape of W
    scaled: jax.Array  # shape of W
    parts: Parts  # parts of -scaled, one for each term of the penalty
    change: jax.Array  # (), the part of P - D that comes from the loss
    limit: jax.Array  # (), less than 1 if the point is not feasible: no dual point is known
    left: jax.Array  # (), rounding error of the constraint of the free features


def free_features(problem: Problem, W: jax.Array) -> tuple[jax.Array | None, Free | None]:
    """A basis of the predictions of the free features, to which a dual point must be orthogonal; and `Free`.

    Some features are free whatever the strengths are, such as those in no group: then these alone count, and
    they are known before the program runs. Else the features of strength 0 count.

    Returns:
      basis: None if the loss gives none, and 0 if the program finds no feature of strength 0.
      free: None if the free features are known before the program runs.

      Both are None without features that are always free, if the penalty has no dual, or if all strengths are
      numbers, so that all features are free or none.
    """
    smooth, penalty = problem.smooth, problem.penalty
    able, always = "free features" in smooth.provides, unpenalised(penalty, W.shape[0], W.dtype)
    if always.shape[-1]:
        return (smooth.unpenalised_basis(always) if able else None), None
    if "dual" not in penalty.provides or even_strengths(problem):
        return None, None
    entries = unpenalised_entries(penalty, W)
    some, count, d = jnp.any(entries), jnp.max(jnp.sum(entries, axis=-1)), W.shape[0]
    if not able:
        return None, Free(entries, some, jnp.zeros((), bool))

    def basis_of(entries: jax.Array) -> jax.Array | None:
        def chosen(mask: jax.Array) -> jax.Array:
            # The index d stands for no feature.
            return jnp.nonzero(mask, size=min(d, MAX_FREE_FEATURES), fill_value=d)[0]

        return smooth.unpenalised_basis(chosen(entries) if entries.ndim == 1 else jax.vmap(chosen)(entries))

    shape = jax.eval_shape(basis_of, entries)
    if shape is None:
        return None, Free(entries, some, jnp.zeros((), bool))
    basis = apply_if(some, lambda _: basis_of(entries), jnp.zeros(shape.shape, shape.dtype))
    return basis, Free(entries, some, count <= MAX_FREE_FEATURES)


def dual_point(
    problem: Problem, W: jax.Array, facts: Facts, free: tuple[jax.Array | None, Free | None], parts: Parts
) -> DualPoint:
    """The dual point of W.

    Args:
      problem: the problem.
      W: the point.
      facts: facts of the loss at W.
      free: the `free_features` of the problem.
      parts: minus the gradient of the loss, as a sum of one part for each term of the penalty.
    """
    basis, where = free
    if basis is None:
        return _scaled(problem, W, facts, parts)
    if where is None:
        return _projected(problem, W, facts, basis, None, parts)
    return apply_if(
        where.some,
        lambda _: _projected(problem, W, facts, basis, where.entries, parts),
        _scaled(problem, W, facts, parts),
    )


def _scaled(problem: Problem, W: jax.Array, facts: Facts, parts: Parts) -> DualPoint:
    """The dual point sU, with ``scaled`` = sG for the best s and ``change`` = l*(sU) - l*(U).

    s = 1 if the loss has no ``dual_scaling``, or if the conjugate of the penalty is finite for every s.
    """
    smooth, penalty, G = problem.smooth, problem.penalty, facts.gradient
    H = () if facts.predictions is None else (facts.predictions,)
    finite = bool(penalty.finite_conjugate)
    s, change = jnp.ones((), G.dtype), jnp.zeros((), G.dtype)
    limit = penalty.dual_scale(-G, *_several(parts))
    if "dual" in smooth.provides:
        # A penalty that is a norm in some rows and squared in others: the best s for the loss may be > 1, but
        # not for the sum with the conjugate of the squares.
        limit = jnp.where(jnp.isinf(limit), limit, jnp.minimum(limit, 1)) if finite else limit
        if facts.linear is None:
            s_loss, change_loss = smooth.dual_scaling(W, limit, *H)
        else:
            linear = facts.linear + _slope(penalty, -G, parts, limit)
            s_loss, change_loss = quadratic_scaling(linear, facts.value, limit)
            change_loss -= (s_loss - 1) * (linear - facts.linear)
        unlimited = jnp.isinf(limit) if finite else jnp.zeros((), bool)
        s, change = jnp.where(unlimited, s, s_loss), jnp.where(unlimited, change, change_loss)
        # The point is now scaled to be feasible, so that `DualPoint.limit` is 1; with s = 0 it is not known.
        limit = jnp.where(limit == 0, 0, 1).astype(G.dtype)
    scaled = tuple(s * part for part in parts)
    return DualPoint(G, s * G, scaled, change, limit, jnp.zeros((), G.dtype))


def _slope(penalty: Penalty, Z: jax.Array, parts: Parts, limit: jax.Array) -> jax.Array | float:
    """The slope of s -> conjugate(s Z) near the largest s, if it is affine there (`Penalty._offset`); else 0.

    If the conjugate is a maximum of affine functions, the result is at most its last slope. So the best s is
    not below 1 where s = 1 is optimal.
    """
    if not penalty._offset:
        return 0.0
    s = jnp.minimum(limit, 1)

    def at(s: jax.Array) -> jax.Array:
        return penalty.conjugate(s * Z, tuple(s * part for part in parts) if len(parts) > 1 else None)

    return safe_divide(at(s) - at(s / 2), s / 2)


def _several(parts: Parts) -> tuple[Parts, ...]:
    """Further arguments of `dual_scale`: the parts if there are several terms."""
    return () if len(parts) == 1 else (parts,)


def _projected(
    problem: Problem, W: jax.Array, facts: Facts, basis: jax.Array, entries: jax.Array | None, parts: Parts
) -> DualPoint:
    """A dual point U that is orthogonal to the predictions of the free features.

    Its gradient is X'U, projected, and scaled to where the conjugate of the penalty is finite. The change is
    the amount that projection and scaling add to the gap, a divergence of the loss.
    """
    smooth, penalty = problem.smooth, problem.penalty
    H = () if facts.predictions is None else (facts.predictions,)
    dG, _ = smooth.dual_projection(W, basis, *H)
    before, free = facts.gradient + dG, unpenalised(penalty, W.shape[0], W.dtype)
    # The slopes of the free features are 0 but for rounding: set them to 0, and count the difference. If
    # ``entries`` is None, ``free`` holds indices of features, (f,), or orthonormal directions, (d, f).
    if entries is not None:
        G = like(jnp.where(jnp.broadcast_to(entries, columns(W).shape), 0, columns(before)), W)
    elif free.ndim == 1:
        G = before.at[free].set(0)
    else:
        G = before - free @ (free.T @ before)
    left = jnp.sum(jnp.abs((before - G) * W))
    parts = (-G,) if len(parts) == 1 else shared(penalty, parts, -G)
    limit = penalty.dual_scale(-G, *_several(parts))
    # s = 1 where the conjugate is finite for every s: the limit is then infinite.
    s = jnp.minimum(limit, 1)
    limit = jnp.where(limit > 0, jnp.ones_like(s), 0)
    _, change = smooth.dual_projection(W, basis, facts.predictions, s)
    G, parts = s * G, tuple(s * part for part in parts)
    return DualPoint(G, G, parts, change, limit, left)
