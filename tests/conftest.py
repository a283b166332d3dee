"""Strict from the start: implicit rank or dtype promotion is an error, and so is every warning.

The suite runs in float64 (and float32 arrays beside it). ``SPARSEJAX_X64=0`` runs what can be run with 64-bit
numbers switched off, as a user of plain JAX has it; ``SPARSEJAX_OPTIMISED=1`` compiles as users do.
"""

import functools
import gc
import os
import zlib
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Two workers share the machine: one thread each is faster than a crowd.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests compile much and compute little: without the optimiser, and without passes that only speed up what
# runs long, they take a quarter of the time.
OPTIMISED = os.environ.get("SPARSEJAX_OPTIMISED", "0") == "1"
if not OPTIMISED:
    passes = (
        "tree_reduction_rewriter",
        "while-loop-invariant-code-motion",
        "while-loop-constant-sinking",
        "reshape-mover",
        "constant_folding",
        "while-loop-trip-count-annotator",
    )
    quick = [
        f"disable_hlo_passes={','.join(passes)}",
        "backend_optimization_level=0",
        "cpu_parallel_codegen_split_count=1",
        "backend_extra_options=xla_cpu_optimize_for_size=true,xla_cpu_disable_new_fusion_emitters",
    ]
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in quick))

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from sparsejax.driver import OPTIONS

if not OPTIMISED:
    OPTIONS["xla_backend_optimization_level"] = 0
gc.set_threshold(20_000, 10, 10)  # tracing makes many objects that live: to look through them takes long
X64 = os.environ.get("SPARSEJAX_X64", "1") != "0"
jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_traceback_in_locations_limit", 0)  # of every operation: a twentieth of the time
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from loss_cases import LOSSES, SUMS
from penalty_cases import PENALTIES


def pytest_configure(config):
    # Tests look at ``converged``, or ask for the warning: `test_solution.py`.
    config.addinivalue_line("filterwarnings", "ignore::sparsejax.ConvergenceWarning")


def programs_of(item):
    """The tests that share most of their programs: those of one problem of the table, or of one file."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    loss, penalty = (name if type(name) is str else "" for name in map(params.get, ("loss", "penalty")))
    if loss in LOSSES | SUMS or penalty in PENALTIES:  # what is tested of one of the two, as in `pairs`
        return f"{loss or 'SquaredLoss'}-{penalty or 'ExclusiveL21'}"
    return item.path.stem


@functools.cache
def left_to_the_matrix():
    """Of each test in `matrix.txt`, whether the default runs one of its cases."""
    found, file = {}, ""
    for line in Path(__file__).with_name("matrix.txt").read_text().splitlines():
        if line.startswith("test_"):
            file = line.strip()
        elif line.startswith(" "):
            *one_of, name = line.split()
            found[file, name] = bool(one_of)
    return found


def mark_the_matrix(items):
    """The mark of what the default leaves out: all cases of a test but one, another place for each test."""
    cases = {}
    for item in items:
        test = item.path.name, getattr(item, "originalname", item.name)
        if test in left_to_the_matrix():
            cases.setdefault(test, []).append(item)
    for (file, name), of_test in cases.items():
        open_ = [number for number, item in enumerate(of_test) if "matrix" not in item.keywords]
        kept = open_[zlib.crc32(name.encode()) % len(open_)] if left_to_the_matrix()[file, name] else None
        for number, item in enumerate(of_test):
            if number != kept:
                item.add_marker(pytest.mark.matrix)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config, items):
    mark_the_matrix(items)
    # Tests that share programs are neighbours, and with xdist's worksteal neighbours run in one process.
    first = {}
    for position, item in enumerate(items):
        first.setdefault(programs_of(item), position)
    items.sort(key=lambda item: first[programs_of(item)])
    if X64:
        return
    skip = pytest.mark.skip(reason="needs 64-bit numbers (SPARSEJAX_X64=0)")
    for item in items:
        if "float32_only_ok" not in item.keywords:
            item.add_marker(skip)


def pytest_runtest_teardown(item, nextitem):
    """Each compiled program takes memory maps, of which a process of Linux has 65530: XLA crashes beyond."""
    maps = Path("/proc/self/maps")
    if nextitem is None or not maps.exists():
        return
    share_programs = programs_of(item) == programs_of(nextitem)
    if maps.read_bytes().count(b"\n") > (45_000 if share_programs else 25_000):
        jax.clear_caches()


@pytest.fixture
def cores_are(monkeypatch):
    """A function that sets the number of cores which the process seems to have."""

    def set_number(count):
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)), raising=False)

    return set_number


@pytest.fixture
def cache_settings():
    """Those of jax's cache of programs, put back afterwards."""
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def shared_data():
    """Folder with the real data sets; tests that need it are skipped without it."""
    folder = os.environ.get("SPARSEJAX_DATA")
    if not folder:
        pytest.skip("SPARSEJAX_DATA is not set: real data sets are not part of the repository")
    folder = Path(folder)
    if not folder.is_dir():
        pytest.fail(f"SPARSEJAX_DATA={folder} is not a folder")  # asked for: a skip would hide it
    return folder
