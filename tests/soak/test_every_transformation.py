"""Every loss with every penalty, two losses with every sum of two: eager, jit, vmap and scan agree.

    python -m pytest -m soak

Some 20 minutes on two cores; `test_transformations.py` asks the same of a few.
"""

import jax
import pytest
from transformed import OF_MATRICES, SHAPES, SMOOTH, check, penalties_of, sums

pytestmark = pytest.mark.soak


def fits(loss, penalty):
    """W is a vector for Cox's loss."""
    return not loss.startswith("CoxLoss") or not set(penalty.split("+")) & OF_MATRICES


@pytest.fixture(autouse=True)
def _room():
    yield
    jax.clear_caches()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("penalty", penalties_of(4))
@pytest.mark.parametrize("loss", SMOOTH)
def test_one_penalty(loss, penalty, shape):
    if fits(loss, penalty):
        check(loss, penalty, shape)


@pytest.mark.parametrize("penalty", sums(4))
@pytest.mark.parametrize("loss", ["SquaredLoss", "LogisticLoss"])
def test_two_penalties(loss, penalty):
    check(loss, penalty, "tall")
