"""Training by optax with exact zeros: a prox after each step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_numpy
from sparsejax.penalties import is_penalty

__all__ = ["ProximalState", "proximal"]


class ProximalState(NamedTuple):
    """The state of `proximal`.

    >>> import jax.numpy as jnp, optax, sparsejax as sj
    >>> from sparsejax.interop.optax import proximal
    >>> optimizer = proximal(optax.sgd(0.1), sj.penalties.L1(1.0), 0.1)
    >>> w = jnp.array([1.0, 0.05])
    >>> updates, state = optimizer.update(jnp.zeros(2), optimizer.init(w), w)
    >>> print(optax.apply_updates(w, updates))
    [0.9 0. ]
    """

    inner: Any  # the state of the optimiser
    step: jax.Array  # () int32, the number of steps made


def proximal(
    optimizer: optax.GradientTransformation,
    penalty: Any,
    step_size: ArrayLike | Callable[[jax.Array], jax.Array],
) -> optax.GradientTransformationExtraArgs:
    r"""``optimizer``, followed at every step by the prox of ``penalty``.

    .. math:: p_{t+1} = \operatorname{prox}_{\eta_t g}(p_t + u_t),

    where u is the optimiser's update: weights become *exactly* zero. Where training ends, -u/eta is a
    subgradient of g. So the ``step_size`` must be the factor between -u and the gradient G:

    * ``optax.sgd(eta)``: u is -eta G. With ``step_size=eta`` this is the proximal gradient method, which
      minimises loss + g;
    * ``optax.sgd(eta, momentum=m)``: under a constant G, u becomes -eta G / (1 - m). Give
      ``step_size=eta / (1 - m)``; with eta the strengths would count 1 - m times only;
    * adam and others that divide by the size of the gradient: u has the size of eta whatever G is, and no
      step size makes the end a minimum of loss + g. Without noise in the gradients training ends near the
      minimum of the loss alone.

    Args:
      optimizer: an optax optimiser whose update is added to the parameters.
      penalty: a penalty on all parameters; `sparsejax.penalties.ByLeaf` penalises chosen leaves. The rows of
        a matrix are its first axis: for a layer ``x @ kernel``, the inputs.
      step_size: eta > 0, shape (), or a schedule of eta: a function of the number of steps made, () int32.
        For plain sgd eta is the learning rate; see above for other optimisers.

    Returns:
      A gradient transformation with the state `ProximalState`; its ``update`` needs ``params``.

    Raises:
      TypeError: ``optimizer`` is not an optax.GradientTransformation; ``penalty`` lacks value or prox; in
        ``update``, a leaf of the params is not an array.
      ValueError: a concrete step size is not a number > 0 or not finite; in ``update``, the params are not
        given, or a penalised leaf has shape ().

    >>> import jax.numpy as jnp, optax, sparsejax as sj
    >>> from sparsejax.interop.optax import proximal
    >>> optimizer = proximal(optax.sgd(0.1), sj.penalties.L1(1.0), 0.1)
    >>> w = jnp.array([1.0, 0.05])
    >>> updates, state = optimizer.update(jnp.zeros(2), optimizer.init(w), w)
    >>> print(optax.apply_updates(w, updates))
    [0.9 0. ]
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"proximal: optimizer must be an optax.GradientTransformation, got {optimizer!r}.")
    if not is_penalty(penalty):
        raise TypeError(f"proximal: penalty must have prox(V, scaling), got {penalty!r}.")
    if not callable(step_size) and not isinstance(step_size, jax.core.Tracer):
        value = as_numpy("proximal: step_size", step_size)
        if value.ndim or value.dtype.kind not in "fiu" or not 0 < value < np.inf:
            raise ValueError(f"proximal: step_size must be > 0 and finite, or a schedule, got {step_size!r}.")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> ProximalState:
        return ProximalState(inner.init(params), jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, ProximalState]:
        if params is None:
            raise ValueError("proximal: update needs params: optimizer.update(grads, state, params).")
        for leaf in jax.tree.leaves(params):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
                raise TypeError(f"proximal: params must be arrays, got {type(leaf).__name__}: {leaf!r}.")
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        eta = step_size(state.step) if callable(step_size) else step_size
        kinds = [leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        eta = jnp.asarray(eta, max(kinds, key=lambda kind: kind.itemsize) if kinds else float)
        new = penalty.prox(jax.tree.map(lambda p, u: p + u, params, updates), eta)
        # p + (0 - p) is exactly 0, so zeros survive optax.apply_updates.
        change = jax.tree.map(lambda n, p: (n - p).astype(p.dtype), new, params)
        return change, ProximalState(inner_state, state.step + 1)

    return optax.GradientTransformationExtraArgs(init, update)
