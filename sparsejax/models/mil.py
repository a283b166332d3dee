r"""Multiple-instance learning: the MILES embedding of bags, and selection of instances for a measure.

Bag i is mapped to its similarities to N prototypes (by default all training instances),

.. math:: s_{ik} = \max_{x\in\text{bag }i} \exp\Big(-\frac{\|x - p_k\|^2}{2\sigma^2}\Big) ,

and `sparsejax.models.multivariate` selects prototypes as features of the bags.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_numpy, as_positive, is_traced
from sparsejax._core.matrices.sparse import as_dense
from sparsejax._core.precision import full_precision
from sparsejax._core.progress import Interrupted
from sparsejax._core.pytree import Pytree
from sparsejax.kernels import in_units, similarity
from sparsejax.models import multivariate
from sparsejax.models._labels import as_threshold, decoded, positives
from sparsejax.models._summary import summary

__all__ = ["Model", "embed", "fit", "median_bandwidth"]

BLOCK_PROTOTYPES = 512  # number of prototypes that are embedded at once
MAX_SAMPLE = 1000  # largest number of instances between which `median_bandwidth` computes all distances


class Model(Pytree, leaves=("prototypes", "weights", "bandwidth", "indices", "linear"), static=()):
    """A fitted classifier of bags; a pytree.

    Attributes:
      prototypes: (s, d), the selected prototypes, the largest |weight| first.
      weights: (s,), their weights, not 0.
      bandwidth: sigma, ().
      indices: (s,), their row numbers in the instances (or prototypes) given to `fit`.
      linear: the `multivariate.Model` on all N prototypes; check ``linear.converged``.

    >>> import numpy as np, sparsejax as sj
    >>> from sparsejax.models import mil, multivariate
    >>> instances, bags = np.array([[0.0], [2.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    >>> options = {"measure": multivariate.hamming(), "budget": 1, "C": 20.0, "bandwidth": 1.0}
    >>> model = mil.fit(instances, bags, [1, -1], **options)
    >>> model.predict(instances, bags).tolist()
    [1, -1]
    """

    prototypes: jax.Array
    weights: jax.Array
    bandwidth: jax.Array
    indices: np.ndarray
    linear: multivariate.Model

    @full_precision()
    def decision_function(self, instances: ArrayLike, bag_ids: Any) -> jax.Array:
        """The score of each bag, (bags,); ``instances`` and ``bag_ids`` as in `embed`."""
        if not self.weights.shape[0]:
            X, ids = _check(instances, bag_ids)
            if X.shape[1] != self.prototypes.shape[1]:
                raise ValueError(
                    f"instances have {X.shape[1]} columns; the fit had {self.prototypes.shape[1]}."
                )
            return jnp.zeros(int(ids.max()) + 1, X.dtype)
        S = embed(instances, bag_ids, self.prototypes, self.bandwidth)
        return S @ self.weights.astype(S.dtype)

    def predict(self, instances: ArrayLike, bag_ids: Any, threshold: float = 0.0) -> Any:
        """Labels of bags like those given to `fit`, (bags,): the second class where the score > threshold.

        Whole numbers, such as -1 and 1, are int32.
        """
        scores = self.decision_function(instances, bag_ids)
        return decoded(scores > as_threshold(threshold), self.linear.classes)

    def score(self, instances: ArrayLike, bag_ids: Any, y: Any) -> float:
        """The measure that the model was fitted for, see `multivariate.Model.score`."""
        scores = np.asarray(self.decision_function(instances, bag_ids))
        return self.linear.measure.score(scores, positives(y, self.linear.classes))

    def __repr__(self) -> str:
        """A summary in one line."""
        sizes = f"{self.linear.measure.name}, {self.linear.w.shape[-1]} prototypes"
        return summary(self, sizes, [self.linear], lambda: f"{len(self.weights)} kept")


def embed(instances: ArrayLike, bag_ids: Any, prototypes: ArrayLike, bandwidth: ArrayLike) -> jax.Array:
    """The similarities s of bags to prototypes.

    Distances are computed from the expanded square of centred data, for blocks of prototypes: memory holds
    instances x 512 numbers and the result. The error of a squared distance is about eps (1e-7 in float32)
    times the largest squared distance of a row from the mean of the prototypes: use float64 for clusters far
    apart.

    Args:
      instances: (n, d), finite, in any order.
      bag_ids: (n,), integers: 0, 1, ..., bags - 1, each at least once; not traced.
      prototypes: (N, d).
      bandwidth: sigma > 0, shape (). Other texts on MILES write sigma^2 in place of 2 sigma^2.

    Returns:
      (bags, N), in [0, 1], dtype of ``instances``; differentiable in the arrays.

    Raises:
      TypeError, ValueError: wrong shapes; bag_ids traced, not integers, or an empty bag; bandwidth <= 0.
    Source: Mao & Tsang, Eq. (26) and (27), after Chen, Bi & Wang, IEEE TPAMI 28 (2006).

    >>> import numpy as np, sparsejax as sj
    >>> instances, bags = np.array([[0.0], [2.0], [2.0]]), np.array([0, 0, 1])
    >>> print(sj.models.mil.embed(instances, bags, np.array([[0.0]]), 1.0).round(2))
    [[1.  ]
     [0.14]]
    """
    X, ids = _check(instances, bag_ids)
    P = as_float("prototypes", prototypes, (2,), X.dtype)
    if P.shape[1] != X.shape[1] or not P.shape[0]:
        raise ValueError(f"prototypes have shape {P.shape}; (N, {X.shape[1]}) with N >= 1 is needed.")
    sigma = as_positive("bandwidth", bandwidth, X.dtype)
    order = np.argsort(ids, kind="stable")
    return _embed(X[order], ids[order], P, sigma, bags=int(ids.max()) + 1)


@full_precision()
@partial(jax.jit, static_argnames="bags")
def _embed(
    instances: jax.Array, ids: jax.Array, prototypes: jax.Array, bandwidth: jax.Array, bags: int
) -> jax.Array:
    instances, prototypes, ratio = in_units(instances, prototypes, bandwidth)
    centre = prototypes.mean(0)
    X, P = instances - centre[None], prototypes - centre[None]
    squares, N = (X * X).sum(1), P.shape[0]
    size = min(BLOCK_PROTOTYPES, N)
    blocks = jnp.pad(P, ((0, -N % size), (0, 0))).reshape(-1, size, P.shape[1])

    def nearest(block: jax.Array) -> jax.Array:
        d2 = squares[:, None] + (block * block).sum(1)[None] - 2 * X @ block.T
        # Take the minimum of the distances: a maximum of their exponentials could underflow to 0.
        return jax.ops.segment_min(d2, ids, bags, indices_are_sorted=True)

    d2 = jnp.maximum(lax.map(nearest, blocks), 0)
    d2 = jnp.moveaxis(d2, 0, 1).reshape(bags, -1)[:, :N]
    return similarity(d2, ratio)


def median_bandwidth(instances: ArrayLike, *, seed: int = 0) -> float:
    """A first guess of the bandwidth: the square root of half the median squared distance of two instances.

    It is about ``sqrt(d)`` for d standardised, independent columns. If there are more than 1000 instances, a
    random sample of 1000 is used.

    Args:
      instances: (n, d), n >= 2, finite; not traced.
      seed: seed of the sample.

    Returns:
      A Python float > 0.

    Raises:
      TypeError, ValueError: as `embed`; instances traced or fewer than two; a median distance of 0, or one
        whose square overflows.

    >>> import numpy as np, sparsejax as sj
    >>> round(sj.models.mil.median_bandwidth(np.array([[0.0], [2.0], [4.0]])), 3)
    1.414
    """
    from scipy.spatial.distance import pdist  # noqa: PLC0415

    if is_traced(instances):
        raise TypeError("median_bandwidth looks at values: call it outside jit and vmap.")
    X = np.asarray(as_float("instances", instances, (2,)), dtype=float)
    seed = as_int("seed", seed, 0)
    if len(X) > MAX_SAMPLE:
        X = X[np.random.default_rng(seed).choice(len(X), MAX_SAMPLE, replace=False)]
    d2 = pdist(X, "sqeuclidean")
    median = float(np.median(d2)) if d2.size else 0.0
    if not median > 0:
        raise ValueError("the median distance of the instances is 0, or its square is: give bandwidth.")
    if np.isinf(median):
        raise ValueError("the squared distances of the instances overflow: rescale the instances.")
    return float(np.sqrt(median / 2))


def fit(
    instances: ArrayLike,
    bag_ids: Any,
    y: Any,
    *,
    measure: multivariate.Measure | Callable[..., Any],
    budget: float,
    C: float,
    bandwidth: float | None = None,
    prototypes: ArrayLike | None = None,
    **options: Any,
) -> Model:
    """Select prototypes for a measure of the labelling of bags.

    Columns of the instances should be on comparable scales. There is no intercept.

    Args:
      instances: (n, d), finite.
      bag_ids: (n,), integers 0, 1, ..., bags - 1, each at least once.
      y: (bags,), labels of two classes (see `sparsejax.models`); both classes must occur.
      measure, budget, C: as `multivariate.fit`, whose n is the number of bags here.
      bandwidth: sigma > 0; default `median_bandwidth`.
      prototypes: (N, d); default all instances.
      options: tol, eps_delta, maxiter, schedule, progress, init of `multivariate.fit`; init is the ``linear``
        of a `Model` that was fitted to the same bags and prototypes.

    Returns:
      `Model`.

    Raises:
      Interrupted: Ctrl-C, as `multivariate.fit`; its ``partial`` is a `Model`.
      TypeError, ValueError: as `embed` and `multivariate.fit`; not one label for each bag; traced
        instances or labels, since the fit works on the host.
    Source: Mao & Tsang, Algorithm 3.

    >>> import numpy as np, sparsejax as sj
    >>> from sparsejax.models import mil, multivariate
    >>> instances, bags = np.array([[0.0], [2.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    >>> options = {"measure": multivariate.hamming(), "budget": 1, "C": 20.0, "bandwidth": 1.0}
    >>> model = mil.fit(instances, bags, [1, -1], **options)
    >>> model.predict(instances, bags).tolist()
    [1, -1]
    """
    if is_traced(instances) or is_traced(y):
        raise TypeError("mil.fit works on the host; inside jit use embed and multivariate.fit.")
    X, ids = _check(instances, bag_ids)
    bags = int(ids.max()) + 1
    if (shape := as_numpy("y", y).shape) != (bags,):
        raise ValueError(f"y must have shape ({bags},), one label for each bag; got {shape}.")
    sigma = median_bandwidth(X) if bandwidth is None else bandwidth
    centres = X if prototypes is None else as_float("prototypes", prototypes, (2,), X.dtype)
    S = embed(X, ids, centres, sigma)

    def model(linear: multivariate.Model) -> Model:
        chosen = linear.selected
        weights = jnp.asarray(linear.w[chosen], X.dtype)
        return Model(centres[chosen], weights, jnp.asarray(sigma, X.dtype), chosen, linear)

    try:
        return model(multivariate.fit(np.asarray(S), y, measure=measure, budget=budget, C=C, **options))
    except Interrupted as stop:
        if stop.partial is None:  # no master was running
            raise
        text = f"mil.fit: interrupted after {stop.partial.num_iters} masters"
        raise Interrupted(text, model(stop.partial)) from None


def _check(instances: ArrayLike, bag_ids: Any) -> tuple[jax.Array, np.ndarray]:
    """The checked instances as a floating JAX array, and the ids as a numpy array of int32."""
    X = as_dense("instances", instances)
    if is_traced(bag_ids):
        raise TypeError("bag_ids must be known outside jit: they give the number of bags.")
    ids = as_numpy("bag_ids", bag_ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"bag_ids have dtype {ids.dtype}; integers are needed.")
    if ids.shape != X.shape[:1] or not ids.size:
        shape = X.shape[:1]
        raise ValueError(f"bag_ids must have shape {shape}, one for each of the instances; got {ids.shape}.")
    if ids.min() < 0:
        raise ValueError(f"bag_ids must be >= 0; there is {ids.min()}.")
    if ids.max() >= ids.size:  # before `bincount`, which would need that many counts
        raise ValueError(
            f"bag_ids must hold each of 0, ..., {ids.max()}, their largest, but have {ids.size} entries only."
        )
    counts = np.bincount(ids, minlength=1)
    if not counts.all():
        raise ValueError(
            f"bag {int(np.argmin(counts))} is empty: bag_ids must hold each of 0, ..., {len(counts) - 1}. To "
            "number the bags of a part of the data anew: numpy.unique(bag_ids, return_inverse=True)[1]."
        )
    return X, ids.astype(np.int32)
