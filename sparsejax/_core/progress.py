"""Long work in chunks on the host: shown while it runs, stopped between two of them.

Nothing stops a compiled program. So what runs long is a program that is called again and again, each time
from the `Place` where the last call stopped, until its work is done. How much a call does is an argument, in
iterations: one program does chunks of any size, and the host chooses them by the time that the last one took.
Where a call stops changes no result.
"""

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checkpoints import Checkpoint, kept_in
from sparsejax._core.checks import check_bool, is_eager

SECONDS = 0.3  # that a chunk shall take: Ctrl-C waits for its end
# Work of the first chunk, and how many times that of the last one the next may be: a path begins with
# strengths that are solved at once, which tell little of the others.
FIRST, GROWTH, FOREVER = 2, 16, 1e30
SLICES = 8  # of a batch, whose size is a shape
SAVING = 0.05  # the share of the time that may go into a checkpoint
NOTHING, STATE, ALL = 0, 1, 2  # what a place knows of its round: a checkpoint only keeps the state


class Interrupted(KeyboardInterrupt):
    """Raised by Ctrl-C in a call with ``progress=True`` or a checkpoint, when the chunk at work ends.

    As every `KeyboardInterrupt` it ends a script that does not catch it; in a notebook the next cell finds it
    as ``sys.last_value``. Nothing works on.

    Attributes:
      partial: what was solved, in the form of the whole answer, as each function documents it; or None.

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


# ------------------------------------------------------------------ within a program


class Course(Protocol):
    """Solves in rounds, one after the other; within a round each from what the one before left."""

    rounds: Any  # how many; may be traced
    length: Any  # solves of each

    def prepare(self, number: jax.Array) -> tuple[Any, Any]:
        """What the solves of this round share, and the state that its first one starts from."""

    def solve(
        self, prepared: Any, at: tuple[jax.Array, jax.Array], state: Any, found: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        """Solve ``at`` (round, number); the next state, all that was found, iterations and certificate."""


class Place(NamedTuple):
    """Where a course stands: all that its next chunk needs."""

    round: jax.Array  # of the next solve
    number: jax.Array  # of the next solve, in its round
    known: jax.Array  # NOTHING, the STATE, or ALL: ``prepared`` too
    prepared: Any
    state: Any
    found: Any


class Budget(NamedTuple):
    """What a chunk may take, in iterations."""

    work: Any  # in all
    setup: Any  # what it takes to prepare a round


class Report(NamedTuple):
    """What the host is told of a chunk."""

    done: Any  # solves, of this chunk and those before
    work: Any  # iterations of this chunk, and one for each solve
    setups: Any  # rounds that were prepared
    gap: Any  # the certificate of the last solve


def chunk(course: Course, place: Place, budget: Budget) -> tuple[Place, Report]:
    """Solves from a place on, one at least, until they have taken what they may."""

    def more(work: jax.Array, setups: jax.Array) -> jax.Array:
        enough: jax.Array = work.astype(jnp.float32) + setups * budget.setup >= budget.work
        return (work == 0) | ~enough

    def due(place: Place) -> jax.Array:
        return (place.known < ALL).astype(jnp.float32)

    def solves(carry: Any) -> Any:
        place, work, setups, gap = carry

        def prepare() -> tuple[Any, Any]:
            prepared, first = course.prepare(place.round)
            choose = lambda old, new: jnp.where(place.known == STATE, old, new)
            return prepared, jax.tree.map(choose, place.state, first)

        prepared, state = lax.cond(place.known == ALL, lambda: (place.prepared, place.state), prepare)
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
        known = jnp.where(over, NOTHING, ALL).astype(jnp.int32)
        return Place(*at, known, prepared, state, found), work, setups, gap

    start = place, jnp.int32(0), jnp.float32(0), jnp.full((), jnp.nan, jnp.result_type(float))
    place, work, setups, gap = lax.while_loop(
        lambda c: (c[0].round < course.rounds) & more(c[1], c[2] + due(c[0])), solves, start
    )
    return place, Report(place.round * course.length + place.number, work, setups, gap)


def first_place(prepared: tuple[Any, Any], found: Any) -> Place:
    """The start of a course; ``prepared`` has the shapes of what `Course.prepare` returns."""
    # By numpy: zeros made by JAX would be compiled first.
    shared, state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), prepared)
    start = Place(np.int32(0), np.int32(0), np.int32(NOTHING), shared, state, found)  # type: ignore[arg-type]
    return jax.device_put(start)


# ------------------------------------------------------------------ on the host


def check_progress(caller: str, progress: Any, tree: Any, checkpoint: Any = None) -> None:
    """Raise unless progress is False, or True where it can be shown: nothing is traced, and tqdm is there."""
    check_bool(f"{caller}: progress", progress)
    given = "progress=True" if progress else "checkpoint"
    if (progress or checkpoint is not None) and not is_eager(tree):
        raise TypeError(f"{caller}: {given} is for calls outside jit, vmap and grad: leave it out there.")
    if progress:
        _tqdm(caller)


def _tqdm(caller: str) -> Any:
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f'{caller}: progress=True needs tqdm: pip install "sparsejax[progress]".'
        ) from None
    return tqdm


class Bar:
    """A bar of tqdm, of text or of a notebook; whether Ctrl-C has been seen; where what is done is kept."""

    def __init__(self, bar: Any, what: str, checkpoint: Checkpoint | None = None):
        self._bar, self._what, self.checkpoint = bar, what, checkpoint
        self.stop = threading.Event()
        self.before, self.each = 0, 1  # counted before, and for every solve

    @property
    def count(self) -> int:
        """How much it shows."""
        return int(self._bar.n)

    def show(self, done: int, gap: float) -> None:
        """So many solves are done; ``gap``: of the last."""
        self._bar.set_postfix_str(f"{self._what} {gap:.1e}", refresh=False)
        self._bar.update(self.before + self.each * done - self._bar.n)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it has been seen."""
        if self.stop.is_set():
            raise KeyboardInterrupt


class _Hidden(contextlib.AbstractContextManager["_Hidden"]):
    """In place of a bar of tqdm where there is only a checkpoint."""

    n = 0

    def __exit__(self, *_: Any) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        pass

    def update(self, n: int) -> None:
        self.n += n


@contextlib.contextmanager
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
    """A `Bar`. Ctrl-C only sets its ``stop`` where it is deferred, the first time; else it is `Interrupted`.

    So that it comes between two chunks, and not while the next one is handed to JAX and would work on.
    """
    with _tqdm(caller)(total=total, desc=caller, unit=unit) if shown else _Hidden() as inner:
        bar = Bar(inner, what, checkpoint)
        with _noted(bar.stop) if deferred else contextlib.nullcontext():
            try:
                yield bar
            except Interrupted:
                raise
            except KeyboardInterrupt:
                raise Interrupted(f"{caller}: interrupted") from None


@contextlib.contextmanager
def _noted(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C sets ``stop``; the second is what it was before."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it does not come here, or is somebody else's
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
    """Go on from each of the places until all its solves are done, or ``bar.stop``: the last places.

    Several at the same time, a thread for each. With a checkpoint what they find there is not done again.

    Args:
      step: (which of the places, place, budget) -> the next place and `Report`.
      places: where they begin.
      totals: how many solves there are from each.
      bar: shows the sum of the solves done.
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
            now, work, setups, gap = (np.asarray(leaf).item() for leaf in report)  # waits for it
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
            list(pool.map(go, range(len(latest))))
        except BaseException:
            bar.stop.set()  # the others end, too
            raise
    return latest


def _loaded(store: Checkpoint, i: int, place: Place) -> tuple[int, Place]:
    """How many solves are done, and the place where they end."""
    found = store.load(f"part-{i}", (np.int64(0), place._replace(prepared=())))
    if found is None:
        return 0, place
    done, last = found
    known = np.minimum(last.known, np.int32(STATE))
    return int(done), jax.device_put(last._replace(known=known))._replace(prepared=place.prepared)


class _Pace:
    """How much fits into a chunk, by the time of those before.

    The first one, which compiles the program, tells nothing. What it takes to prepare a round is known from a
    chunk that did when the rate of the solves is known from another that did not; till then such a chunk ends
    after a solve.
    """

    def __init__(self) -> None:
        self.work, self.setup = float(FIRST), FOREVER
        self.rate: float | None = None  # iterations a second
        self.compiled = False
        self.saving = 0.0  # seconds that it took to save the last one

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
            seconds = max(SECONDS, self.saving / SAVING)
            self.work = min(max(self.rate * seconds, 1), GROWTH * (work + 1))


def in_slices(
    call: Callable[[np.ndarray], Any],
    count: int,
    width: int,
    bar: Bar,
    gap: Callable[[Any], Any],
    like: Any,
) -> list[Any]:
    """``call`` of the numbers from 0 to count, ``width`` at a time, until ``bar.stop``: the answers.

    The last slice is filled up with the last number. With a checkpoint what is found there is not done again;
    ``like``: a tree of the structure and dtypes of an answer.
    """
    answers: list[Any] = []
    for begin in range(0, count, width):
        if bar.stop.is_set():
            break
        numbers = np.minimum(np.arange(begin, begin + width), count - 1)
        answers.append(kept_in(bar.checkpoint, f"slice-{begin}", like, functools.partial(call, numbers)))
        bar.show(min(begin + width, count), float(np.max(gap(answers[-1]))))
    return answers
