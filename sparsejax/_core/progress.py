"""Long work in chunks on the host, with a progress bar. Ctrl-C stops the work between two chunks.

A compiled program cannot be stopped. Long work is therefore a program that the host calls again and again,
each time from the `Place` where the last call ended. The size of a chunk, in iterations, is an argument of
the program: the host chooses it by the time that the last chunk took. The chunks do not change any result.
"""

import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checkpoints import Checkpoint, saved_or_computed
from sparsejax._core.checks import check_bool, is_eager
from sparsejax._core.linalg import choose

CHUNK_SECONDS = 0.3  # time that a chunk should take: Ctrl-C waits for its end
FIRST_CHUNK_WORK = 2  # iterations of the first chunk
# A chunk has at most this many times the work of the last one. The first strengths of a path are solved in a
# few iterations, which say little about the time of the others.
MAX_CHUNK_GROWTH = 16
UNKNOWN_SETUP_WORK = 1e30  # iterations: a chunk with a set-up of unknown cost ends after a solve
# The main thread waits no longer than this for other threads: a Ctrl-C that arrives just before a wait, or
# that the system hands to another thread, does not end the wait.
MAX_DEAF_SECONDS = 0.1
SLICES = 8  # how many slices a batch is solved in
MAX_SAVING_SHARE = 0.05  # share of the time that may go into saving checkpoints
# What a place knows of its round: nothing, the state of its solves, or the state and ``prepared``. A
# checkpoint stores only the state.
KNOWS_NOTHING, KNOWS_STATE, KNOWS_ALL = 0, 1, 2


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C in a call with ``progress=True`` or a checkpoint, when the running chunk has ended.

    Like every `KeyboardInterrupt` it ends a script that does not catch it; in a notebook it is
    ``sys.last_value`` in the next cell. No computation goes on in the background.

    Attributes:
      partial: what has been solved, in the form of the whole answer, as each function documents it; or None.

    >>> import sparsejax as sj
    >>> try:
    ...     raise sj.Interrupted("path: interrupted", partial="what was solved")
    ... except KeyboardInterrupt as stop:
    ...     print(stop, "|", stop.partial)
    path: interrupted | what was solved
    """

    def __init__(self, message: str = "", partial: Any = None):
        super().__init__(message)
        self.partial = partial


# ------------------------------------------------------------------ inside a program


class Course(Protocol):
    """Rounds of solves, one after another; within a round each solve starts from the state of the last."""

    rounds: Any  # () int, number of rounds; may be traced
    length: Any  # () int, solves in each round; may be traced

    def prepare(self, number: jax.Array) -> tuple[Any, Any]:
        """Data that all solves of round ``number`` share, and the state from which its first solve starts."""

    def solve(
        self, prepared: Any, at: tuple[jax.Array, jax.Array], state: Any, found: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        """Make the solve with number ``at[1]`` in round ``at[0]``, both from 0 on.

        Returns the next state, ``found`` with the result added, its iterations, and its certificate.
        """


class Place(NamedTuple):
    """Where a course has stopped: everything that the next chunk needs."""

    round: jax.Array  # () int32, round of the next solve
    number: jax.Array  # () int32, number of the next solve in its round
    known: jax.Array  # () int32: KNOWS_NOTHING, KNOWS_STATE or KNOWS_ALL
    prepared: Any  # first result of `Course.prepare`, valid if ``known`` is KNOWS_ALL
    state: Any  # state of the next solve, valid if ``known`` is KNOWS_STATE or KNOWS_ALL
    found: Any  # results of all solves so far


class Budget(NamedTuple):
    """How long a chunk may take, in iterations."""

    work: Any  # (), iterations that the chunk may take
    setup: Any  # (), number of iterations that take as long as preparing a round


class Report(NamedTuple):
    """What the host learns from a chunk."""

    done: Any  # (), solves done by this chunk and all earlier ones
    work: Any  # (), iterations of this chunk plus one for each of its solves
    setups: Any  # (), rounds that this chunk prepared
    gap: Any  # (), the certificate of the last solve


def chunk(course: Course, place: Place, budget: Budget) -> tuple[Place, Report]:
    """Solve from a place on, at least one problem, until the budget is used up or all is done."""

    def more(work: jax.Array, setups: jax.Array) -> jax.Array:
        # True until one solve is done and the work, with that of set-ups, reaches the budget.
        return (work == 0) | (work.astype(jnp.float32) + setups * budget.setup < budget.work)

    def due(place: Place) -> jax.Array:
        return (place.known < KNOWS_ALL).astype(jnp.float32)

    def solves(carry: Any) -> Any:
        # The rest of a round: prepare the round unless that is done, then solve one problem after another.
        place, work, setups, gap = carry

        def prepare() -> tuple[Any, Any]:
            prepared, first = course.prepare(place.round)
            return prepared, choose(place.known == KNOWS_STATE, place.state, first)

        prepared, state = lax.cond(place.known == KNOWS_ALL, lambda: (place.prepared, place.state), prepare)
        setups = setups + due(place)

        def one(c: Any) -> Any:
            number, state, found, work, last = c
            state, found, took, gap = course.solve(prepared, (place.round, number), state, found)
            return number + 1, state, found, work + took + 1, gap.astype(last.dtype)

        number, state, found, work, gap = lax.while_loop(
            lambda c: (c[0] < course.length) & more(c[3], setups),
            one,
            (place.number, state, place.found, work, gap),
        )
        over = number >= course.length
        at = place.round + over.astype(jnp.int32), jnp.where(over, 0, number)
        known = jnp.where(over, KNOWS_NOTHING, KNOWS_ALL).astype(jnp.int32)
        return Place(*at, known, prepared, state, found), work, setups, gap

    start = place, jnp.int32(0), jnp.float32(0), jnp.full((), jnp.nan, jnp.result_type(float))
    place, work, setups, gap = lax.while_loop(
        lambda c: (c[0].round < course.rounds) & more(c[1], c[2] + due(c[0])), solves, start
    )
    return place, Report(place.round * course.length + place.number, work, setups, gap)


def first_place(prepared: tuple[Any, Any], found: Any) -> Place:
    """The place at the start of a course; ``prepared`` has the shapes of the result of `Course.prepare`."""
    # By numpy, since JAX would compile a program that makes the zeros. mypy: the fields are JAX arrays.
    shared, state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), prepared)
    start = Place(np.int32(0), np.int32(0), np.int32(KNOWS_NOTHING), shared, state, found)  # type: ignore[arg-type]
    return jax.device_put(start)


# ------------------------------------------------------------------ on the host


def check_progress(caller: str, progress: Any, tree: Any, checkpoint: Any = None) -> None:
    """Raise unless ``progress`` is a bool and can be shown: nothing is traced and tqdm is installed."""
    check_bool(f"{caller}: progress", progress)
    given = "progress=True" if progress else "checkpoint"
    if (progress or checkpoint is not None) and not is_eager(tree):
        raise TypeError(f"{caller}: {given} is for calls outside jit, vmap and grad: leave it out there.")
    if progress:
        _tqdm(caller)
        if sys.stderr is None:  # the constructor of a bar would fail, and leave a lock that other bars need
            raise RuntimeError(f"{caller}: progress=True needs sys.stderr, which this process does not have.")


def _tqdm(caller: str) -> Any:
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f'{caller}: progress=True needs tqdm (the extra "sparsejax[progress]"): pip install tqdm.'
        ) from None
    return tqdm


class Bar:
    """A progress bar of tqdm (None: nothing is shown), a flag that Ctrl-C sets, and a checkpoint, if any."""

    def __init__(self, bar: Any, what: str, checkpoint: Checkpoint | None = None):
        self._bar, self._what, self.checkpoint = bar, what, checkpoint
        self.stop = threading.Event()
        self.before, self.each = 0, 1  # the count before this work, and the count added for every solve
        self.count = 0  # the count that the bar shows

    def show(self, done: int, gap: float) -> None:
        """Show that ``done`` solves are done; ``gap``: the certificate of the last one.

        The bar never runs backwards: where work is done again, it waits until ``done`` exceeds its count.
        """
        more = max(self.before + self.each * done - self.count, 0)
        self.count += more
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._what} {gap:.1e}", refresh=False)
            self._bar.update(more)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.stop.is_set():
            raise KeyboardInterrupt


@contextmanager
def bar_of(
    caller: str,
    total: int | None,
    unit: str = "solve",
    what: str = "gap",
    *,
    deferred: bool = True,
    shown: bool = True,
    checkpoint: Checkpoint | None = None,
) -> Iterator[Bar]:
    """A `Bar` as a context; Ctrl-C leaves it as `Interrupted`.

    With ``deferred`` the first Ctrl-C only sets ``stop`` of the bar, so that the work ends between two chunks
    and no chunk goes on in the background.
    """
    with _tqdm(caller)(total=total, desc=caller, unit=unit) if shown else nullcontext() as inner:
        # The first chunk compiles the program, which takes a good part of a minute at worst.
        if inner is not None and deferred:
            inner.set_postfix_str("compiling", refresh=True)
        bar = Bar(inner, what, checkpoint)
        with _noted(bar.stop) if deferred else nullcontext():
            try:
                yield bar
            except Interrupted:
                raise
            except KeyboardInterrupt:
                raise Interrupted(f"{caller}: interrupted") from None


@contextmanager
def _noted(stop: threading.Event) -> Iterator[None]:
    """A context in which the first Ctrl-C sets ``stop`` and restores the usual effect of the next one."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # signals go to the main thread only, or other code handles them
        return

    def note(*_: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def in_chunks(
    step: Callable[[int, Any, Budget], tuple[Any, Report]],
    places: Sequence[Any],
    totals: Sequence[int],
    bar: Bar,
) -> list[Any]:
    """Continue from each of the places until all its solves are done or ``bar.stop`` is set.

    Several places are worked on at the same time, with a thread for each. Work that the checkpoint of the bar
    already has is not repeated.

    Args:
      step: (index of the place, place, budget) -> the next place and `Report`.
      places: where the work begins.
      totals: the number of solves from each place.
      bar: shows the number of all solves done.

    Returns:
      The places where the work has ended.
    """
    latest, done, lock, store = list(places), [0] * len(places), threading.Lock(), bar.checkpoint
    if store is not None:
        for i, place in enumerate(places):
            done[i], latest[i] = _loaded(store, i, place)

    def go(i: int) -> None:
        pace = _Pace()
        while done[i] < totals[i] and not bar.stop.is_set():
            begin = time.perf_counter()
            latest[i], report = step(i, latest[i], pace.budget())
            now, work, setups, gap = (np.asarray(leaf).item() for leaf in report)  # waits for the chunk
            pace.learn(time.perf_counter() - begin, work, setups)
            if store is not None:
                pace.saving = store.save(f"part-{i}", (np.int64(now), latest[i]._replace(prepared=())))
            with lock:
                done[i] = now
                bar.show(sum(done), gap)

    if len(latest) == 1:
        go(0)
        return latest
    with ThreadPoolExecutor(len(latest)) as pool:
        try:
            pending = {pool.submit(go, i) for i in range(len(latest))}
            while pending:
                ended, pending = wait(pending, MAX_DEAF_SECONDS, FIRST_EXCEPTION)
                for one in ended:
                    one.result()
        except BaseException:
            bar.stop.set()  # the other threads end too
            raise
    return latest


def _loaded(store: Checkpoint, i: int, place: Place) -> tuple[int, Place]:
    """The solves done in part i of the checkpoint, and the place where they end; else 0 and ``place``."""
    found = store.load(f"part-{i}", (np.int64(0), place._replace(prepared=())))
    if found is None:
        return 0, place
    done, last = found
    known = np.minimum(last.known, np.int32(KNOWS_STATE))
    return int(done), jax.device_put(last._replace(known=known))._replace(prepared=place.prepared)


class _Pace:
    """The size of the next chunk, from the times of earlier chunks.

    The first chunk compiles the program, so that its time is not used. A chunk without a set-up gives the
    rate of iterations; with the rate known, a chunk with a set-up gives the cost of a set-up.
    """

    def __init__(self) -> None:
        self.work, self.setup = float(FIRST_CHUNK_WORK), UNKNOWN_SETUP_WORK
        self.rate: float | None = None  # iterations a second
        self.compiled = False
        self.saving = 0.0  # seconds that saving the last checkpoint took

    def budget(self) -> Budget:
        return Budget(np.float32(self.work), np.float32(self.setup))

    def learn(self, seconds: float, work: int, setups: float) -> None:
        if not self.compiled:
            self.compiled = True
            return
        if not setups:
            self.rate = work / max(seconds, 1e-6)
        elif self.rate is not None:
            self.setup = max(self.rate * seconds - work, 0) / setups
        if self.rate is not None:
            wanted = max(CHUNK_SECONDS, self.saving / MAX_SAVING_SHARE)  # seconds for the next chunk
            self.work = min(max(self.rate * wanted, 1), MAX_CHUNK_GROWTH * (work + 1))


def in_slices(
    call: Callable[[np.ndarray], Any], count: int, width: int, bar: Bar, gap: Callable[[Any], Any], like: Any
) -> list[Any]:
    """The answers of ``call`` for the numbers 0 to count - 1, ``width`` at a time, until ``bar.stop`` is set.

    The last slice is padded with the last number. Slices that the checkpoint of the bar has are not computed
    again.

    Args:
      call: (numbers (width,)) -> the answer of one slice.
      count, width: how many numbers there are, and how many a slice has.
      bar: shows how many numbers are done.
      gap: (answer) -> its certificates; the bar shows the largest one.
      like: a tree with the structure and dtypes of an answer.

    Returns:
      One answer for each slice that was reached.
    """
    answers: list[Any] = []
    for begin in range(0, count, width):
        if bar.stop.is_set():
            break
        numbers = np.minimum(np.arange(begin, begin + width), count - 1)
        answers.append(
            saved_or_computed(bar.checkpoint, f"slice-{begin}", like, functools.partial(call, numbers))
        )
        bar.show(min(begin + width, count), float(np.max(gap(answers[-1]))))
    return answers
