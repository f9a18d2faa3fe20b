"""The index, to be asked: every page of the console, live and past, is made of these answers.

``until`` is a moment of the log in seconds since the Unix epoch, at which the answer is as it would have been; None is
now. Lists are asked page by page (:class:`~.questions.PageAsk`): each says what to ask for the next, and none costs
more the further back it lies. Every answer is bounded, and so is its time. Questions block for milliseconds: from a
loop, ask them in a thread (``asyncio.to_thread``); any number of threads may ask at once.

Raises, of every question:

* ``QuestionError``: it cannot be asked so; a line for whoever asked.
* ``StoreError``: there is no index, or it cannot be read; a line for people.
"""

import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, Self

from trinity_bus.console.index.files import explained, reading
from trinity_bus.console.index.queries import mesh
from trinity_bus.console.index.queries import samples as of_samples
from trinity_bus.console.index.terms import ALL_SAMPLES, FIRST_PAGE, PageAsk, RowPage, SampleFilter, SampleRow

_CONNECTIONS: Final = 4  # More questions at once than these wait for each other
SEARCH_S: Final = 0.5  # A search that has not filled its page stops after about this time, and says where it got to


def _asked[**P, R](query: Callable[Concatenate[sqlite3.Connection, P], R]) -> "Callable[Concatenate[Index, P], R]":
    def asks(index: "Index", /, *args: P.args, **wanted: P.kwargs) -> R:
        return index._ask(lambda db: query(db, *args, **wanted))  # noqa: SLF001 - a method of it

    return asks


class Index:
    """Answers from the store in a folder, which another thread or process may be writing. A context manager."""

    def __init__(self, folder: Path, *, search_s: float = SEARCH_S) -> None:
        self.folder = folder
        self._search_s = search_s
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        with explained(folder):
            for _ in range(_CONNECTIONS):
                self._idle.put(reading(folder))

    def close(self) -> None:
        """Close it, after the questions under way."""
        for _ in range(_CONNECTIONS):
            self._idle.get().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    extent = _asked(mesh.extent)
    passed_over = _asked(mesh.passed_over)
    batches = _asked(mesh.batches)
    batch = _asked(mesh.batch)
    trainers = _asked(of_samples.trainers)
    steps = _asked(mesh.steps)
    step = _asked(mesh.step)
    groups = _asked(of_samples.groups)
    whole_group = _asked(of_samples.whole_group)
    sample = _asked(of_samples.sample)
    task = _asked(mesh.task)
    reward_histogram = _asked(of_samples.histogram)
    metric_names = _asked(mesh.metric_names)
    metrics = _asked(mesh.metrics)
    versions = _asked(mesh.versions)
    syncs = _asked(mesh.syncs)
    fleet = _asked(mesh.fleet)
    settings = _asked(mesh.settings)
    dead_letters = _asked(mesh.dead_letters)

    def samples(
        self, wanted: SampleFilter = ALL_SAMPLES, ask: PageAsk = FIRST_PAGE, *, until: float | None = None
    ) -> RowPage[SampleRow]:
        """Return samples: the newest group first, each group's in their order."""
        return self._ask(lambda db: of_samples.samples(db, wanted, ask, until, self._search_s))

    def _ask[A](self, question: Callable[[sqlite3.Connection], A]) -> A:
        db = self._idle.get()
        try:
            with explained(self.folder):
                # One state of the tables for all that an answer is made of.
                db.execute("BEGIN")
                try:
                    return question(db)
                finally:
                    if db.in_transaction:
                        db.execute("COMMIT")
        finally:
            self._idle.put(db)
