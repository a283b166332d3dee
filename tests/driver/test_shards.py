"""Solves spread over two devices, each of which solves what it holds: the same answers, and nothing waits.

The devices are two of one CPU, which JAX must be told before it starts: this file run as a script.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.selection.path_runner import checkpoint_of
from sparsejax.selection.paths import prepare_path

SECONDS = 300  # a batch that hangs is an error; all of it takes some thirty
FRACTIONS = np.array([0.5, 0.2, 0.1, 0.05])  # of lambda_max, a lane each


def problems():
    """Of a fraction of lambda_max: Newton on tiles, ADMM, majorised Newton, and a function of W alone."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((16, 40))
    y = X[:, :3] @ [1.0, -2.0, 1.0] + 0.1 * rng.standard_normal(16)
    Y = np.stack([y, rng.standard_normal(16)], axis=1)
    Xj, yj = jnp.asarray(X), jnp.asarray(y)
    plain = lambda W: jnp.sum((Xj[:, :8] @ W - yj) ** 2) / 2
    return {
        "l21": (losses.SquaredLoss(X, Y), penalties.L21, None),
        "exclusive": (losses.SquaredLoss(X[:, :8], Y), lambda a: penalties.ExclusiveL21(a, a / 10), None),
        "logistic": (losses.LogisticLoss(X[:, :8], (y > 0) * 1.0), penalties.L1, None),
        "plain": (plain, penalties.L1, jnp.zeros(8)),
    }


def answers(names):
    """The largest difference of params, or of a gradient, from the same solved on one device."""
    mesh = Mesh(np.array(jax.devices()), ("lanes",))
    over = lambda f: jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("lanes"), out_specs=P("lanes")))
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("lanes")))
    found = {"devices": jax.device_count()}
    for name in names:
        loss, penalty, init = problems()[name]
        # A tolerance near the end of the digits: different sums of the same numbers give the same answer.
        solve = lambda a, loss=loss, penalty=penalty, init=init: sj.solve(
            sj.Problem(loss, penalty(a)), init=init, tol=1e-13, maxiter=100_000
        )
        top = 2.0 if init is not None else sj.lambda_max(sj.Problem(loss, penalty(1.0)))
        strengths = jnp.asarray(FRACTIONS * top)
        size = lambda a, solve=solve: jnp.sum(solve(a).params ** 2)
        one = jax.jit(jax.vmap(solve))(strengths)
        slopes = jax.jit(jax.vmap(jax.grad(size)))(strengths)
        assert np.all(one.converged) and np.all(slopes[1:] != 0), name
        ways = {
            "lanes on two devices": jax.jit(jax.vmap(solve))(put(strengths)).params,
            "shard_map": over(jax.vmap(solve))(strengths).params,
        }
        if name == "l21":
            ways["pmap"] = jax.pmap(jax.vmap(solve))(strengths.reshape(2, 2)).params
            alone = lambda a, solve=solve: solve(a[0]).params[None]
            ways["one problem a device"] = over(alone)(strengths[:2])
        for way, params in ways.items():
            got = np.asarray(params).reshape(-1, *one.params.shape[1:])
            found[f"{name}: {way}"] = float(np.abs(got - one.params[: len(got)]).max())
        got = over(jax.vmap(jax.grad(size)))(strengths)
        found[f"{name}: gradient in shard_map"] = float(np.abs(got / slopes - 1).max())
    if "l21" in names:
        found["l21: path"] = path_in_shards(over)
        refuse_the_checkpoint_of_other_shards()
        nothing_is_gathered()
    if "plain" in names:
        found["plain: rows of the device"] = own_rows(mesh)
        found["plain: leaves and start of the device"] = own_leaves(mesh)
    if "logistic" in names:
        found["logistic: lanes of lanes"] = lanes_of_lanes()
    return found


def nothing_is_gathered():
    """Rows of X stay on the device that holds them, with many columns and with few."""
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))
    rng = np.random.default_rng(0)
    for shape in ((700, 600), (300, 20)):
        X = jax.device_put(rng.standard_normal(shape), rows)
        y = jax.device_put(rng.standard_normal(shape[0]), rows)
        run = lambda X, y: sj.fista(sj.Problem(losses.SquaredLoss(X, y), penalties.L1(0.1)), maxiter=50)
        text = jax.jit(run).lower(X, y).compile().as_text()
        assert "all-reduce" in text
        assert not re.findall(r"= .* (all-gather|all-to-all|collective-permute)", text), shape


def refuse_the_checkpoint_of_other_shards():
    """Sums over two devices have other last bits than those of one."""
    X, y = np.ones((8, 3)), np.arange(8.0)
    strengths = jax.vmap(penalties.L1)(np.array([0.2, 0.1]))

    def begun(X, folder):
        p = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(1.0))
        checkpoint_of("path", folder, prepare_path("path", p, strengths, None, "auto", None, 100))

    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))
    with tempfile.TemporaryDirectory() as folder:
        begun(jax.device_put(X, rows), folder)
        begun(jax.device_put(X, rows), folder)
        with pytest.raises(ValueError, match="of another call, which differs in: shards"):
            begun(X, folder)


def path_in_shards(over):
    loss, penalty, _ = problems()["l21"]
    weak = jnp.array([[8.0, 2.0], [5.0, 1.0]])
    run = lambda strengths: sj.path(sj.Problem(loss, penalty(1.0)), jax.vmap(penalty)(strengths), tol=1e-13)
    got = over(lambda strengths: run(strengths[0]).params[None])(weak)
    return max(float(np.abs(got[i] - run(weak[i]).params).max()) for i in range(2))


def own_rows(mesh):
    """Each device fits rows of its own by a function that closes over them; gradients in X, summed in y."""
    rng = np.random.default_rng(1)
    X, y = jnp.asarray(rng.standard_normal((2, 12, 4))), jnp.asarray(rng.standard_normal(12))

    def size(X, y):
        loss = lambda W: jnp.sum((X @ W - y) ** 2) / 2
        solution = sj.solve(sj.Problem(loss, penalties.L1(0.5)), init=jnp.zeros(4), tol=1e-13)
        return jnp.sum(solution.params**2)

    def total(X, y):
        both = jax.shard_map(
            lambda X, y: jax.lax.psum(size(X[0], y), "lanes"),
            mesh=mesh,
            in_specs=(P("lanes"), P()),
            out_specs=P(),
        )
        return both(X, y)

    got = jax.jit(jax.grad(total, argnums=(0, 1)))(X, y)
    wanted = jax.grad(lambda X, y: size(X[0], y) + size(X[1], y), argnums=(0, 1))(X, y)
    return max(float(np.abs(a - b).max()) for a, b in zip(got, wanted, strict=True))


def lanes_of_lanes():
    loss, penalty, _ = problems()["logistic"]
    one = lambda a, tol: sj.solve(sj.Problem(loss, penalty(a)), tol=tol).params
    strengths, tols = jnp.array([0.05, 0.02]), jnp.array([1e-13, 1e-12])
    got = jax.jit(jax.vmap(lambda tol: jax.vmap(lambda a: one(a, tol))(strengths)))(tols)
    wanted = jnp.stack([jnp.stack([one(a, tol) for a in strengths]) for tol in tols])
    return float(np.abs(got - wanted).max())


def own_leaves(mesh):
    """Each device has a leaf of the loss, or a start, of its own; y is the same for both."""
    rng = np.random.default_rng(1)
    X, y = jnp.asarray(rng.standard_normal((2, 12, 4))), jnp.asarray(rng.standard_normal(12))
    solve = lambda loss, init: sj.solve(sj.Problem(loss, penalties.L1(0.5)), init=init, tol=1e-13).params[
        None
    ]

    def by_leaf(X, init):
        return solve(jax.tree_util.Partial(lambda X, W: jnp.sum((X @ W - y) ** 2) / 2, X[0]), jnp.zeros(4))

    def by_start(_, init):
        return solve(lambda W: jnp.sum((X[0] @ W - y) ** 2) / 2, init[0])

    off, init = 0.0, jnp.ones((2, 4))
    for run in (by_leaf, by_start):
        over = jax.shard_map(run, mesh=mesh, in_specs=(P("lanes"), P("lanes")), out_specs=P("lanes"))
        wanted = jnp.concatenate([run(X[i : i + 1], init[i : i + 1]) for i in range(2)])
        off = max(off, float(np.abs(jax.jit(over)(X, init) - wanted).max()))
    return off


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("l21",), 6),
        (("plain", "logistic"), 9),
        pytest.param(("exclusive",), 3, marks=pytest.mark.soak),
    ],
)
def test_two_devices_give_what_one_gives(names, count):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, Path(__file__), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("devices") == 2
    wrong = {way: off for way, off in found.items() if not off <= (1e-9 if "grad" in way else 1e-12)}
    assert len(found) == count and not wrong


if __name__ == "__main__":
    print(json.dumps(answers(sys.argv[1:])))
