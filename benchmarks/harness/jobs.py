"""Command lines, and jobs: each run once, kept in a file of its own, several at a time in processes."""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Job = tuple[Any, ...]  # its name, its function, the function's arguments


def parser(doc: str | None, *, data: bool = True, out: str | None = None) -> argparse.ArgumentParser:
    """A command line with ``--data`` and, if ``out`` says what is written there, a required ``--out``."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        found.add_argument("--data", help="folder with the .npz files; default $SPARSEJAX_DATA")
    if out:
        found.add_argument("--out", type=Path, required=True, help=f"folder for {out}")
    return found


def chosen(found: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    """The names in ``text``, between commas; an error on the command line if one is not known."""
    names = text.split(",")
    unknown = set(names) - set(known)
    if unknown:
        found.error(f"unknown data sets {sorted(unknown)}; there are {', '.join(known)}")
    return names


class Results:
    """The results of a script: a JSON file for each job, and the tables made of them."""

    def __init__(self, folder: Path, script: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.script = folder, script

    def path(self, job: str) -> Path:
        """The file of a job."""
        return self.folder / f"{self.script}_{job.replace(' ', '_')}.json"

    def run(self, job: str, function: Callable[..., dict], *arguments: Any) -> dict:
        """The result of a job from its file, or by running it."""
        path = self.path(job)
        if not path.exists():
            start = time.perf_counter()
            result = function(*arguments)
            path.write_text(json.dumps(result))
            print(f"{job}: {time.perf_counter() - start:.0f} s", flush=True)
        return json.loads(path.read_text())

    def run_all(self, jobs: Iterable[Job], workers: int = 1) -> None:
        """All jobs that have no file, so many at a time, in processes of their own."""
        left = [job for job in jobs if not self.path(job[0]).exists()]
        with fresh_processes(workers) as pool:
            for running in [pool.submit(self.run, *job) for job in left]:
                running.result()

    def found(self, names: Iterable[str], job: str = "{}") -> dict[str, dict]:
        """The results that are finished, by name; a name's job is ``job`` with the name put in."""
        paths = {name: self.path(job.format(name)) for name in names}
        return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}

    def matching(self, pattern: str) -> list[dict]:
        """The results of all jobs whose names match, in the order of their names."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(self.path(pattern).name))]

    def write(self, parts: Iterable[str]) -> None:
        """The tables."""
        (self.folder / f"{self.script}.md").write_text("\n".join(parts))


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """Processes that start with nothing imported; use it in a ``with``."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a function in a process of its own, so that its peak memory is its own."""
    with fresh_processes(1) as pool:
        return pool.submit(function, *arguments).result()


def one_blas_thread() -> None:
    """For processes started from here on, unless the environment says otherwise."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
