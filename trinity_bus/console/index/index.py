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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from schemas.record import BatchType
from trinity_bus.console.index.answers import (
    BatchDetail,
    BatchRow,
    ChoiceRow,
    DeadLetterRow,
    ExplorerRow,
    Extent,
    GroupRow,
    Histogram,
    PassedOver,
    PublishedRow,
    RowPage,
    SampleDetail,
    SamplePlace,
    SampleRow,
    Series,
    SettingsRow,
    StepDetail,
    StepRow,
    TaskTimeline,
    TrainerRow,
    VersionDetail,
    WholeGroup,
)
from trinity_bus.console.index.files import explained, reading
from trinity_bus.console.index.queries import groups, mesh, samples, trainers, training
from trinity_bus.console.index.questions import Axis, DeadLetterFilter, PageAsk, SampleFilter

_CONNECTIONS: Final = 4  # More questions at once than these wait for each other
FIRST_PAGE: Final = PageAsk()
ALL_SAMPLES: Final = SampleFilter()
ALL_DEAD_LETTERS: Final = DeadLetterFilter()
SEARCH_S: Final = 0.5  # A search that has not filled its page stops after about this time, and says where it got to


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def extent(self, *, until: float | None = None) -> Extent:
        return self._ask(lambda db: mesh.extent(db, until))

    def passed_over(self) -> PassedOver:
        return self._ask(mesh.passed_over)

    def batches(
        self,
        ask: PageAsk = FIRST_PAGE,
        *,
        batch_type: BatchType | None = None,
        state: str | None = None,
        until: float | None = None,
    ) -> RowPage[BatchRow]:
        """Return batches, those that changed last first."""
        return self._ask(lambda db: training.batches(db, ask, batch_type, state, until))

    def batch(self, batch_id: str, *, until: float | None = None) -> BatchDetail | None:
        """Return one batch; None: there is none. Its groups and samples are asked for by ``SampleFilter``."""
        return self._ask(lambda db: training.batch(db, batch_id, until))

    def trainers(self, *, until: float | None = None) -> list[TrainerRow]:
        """Return who has steps: the live trainer that spoke last first, and those that follow one last."""
        return self._ask(lambda db: trainers.trainers(db, until))

    def steps(
        self, ask: PageAsk = FIRST_PAGE, *, trainer: str | None = None, until: float | None = None
    ) -> RowPage[StepRow]:
        """Return steps of a trainer's last run, the newest first; of one that was begun again, the last time."""
        return self._ask(lambda db: training.steps(db, ask, trainer, until))

    def step(self, number: int, *, trainer: str | None = None, until: float | None = None) -> StepDetail | None:
        return self._ask(lambda db: training.step(db, number, trainer, until))

    def groups(
        self, wanted: SampleFilter = ALL_SAMPLES, ask: PageAsk = FIRST_PAGE, *, until: float | None = None
    ) -> RowPage[GroupRow]:
        """Return groups, the newest first.

        What the filter says of single samples (rewards, versions) need hold of some of them; texts and finish reasons
        are not looked at.
        """
        return self._ask(lambda db: groups.groups(db, wanted, ask, until))

    def whole_group(self, partition: int, offset: int, *, until: float | None = None) -> WholeGroup | None:
        """Return all parts of the group that a record is of, and the steps that were begun with it; None: no record."""
        return self._ask(lambda db: groups.whole_group(db, partition, offset, until))

    def samples(
        self, wanted: SampleFilter = ALL_SAMPLES, ask: PageAsk = FIRST_PAGE, *, until: float | None = None
    ) -> RowPage[SampleRow]:
        """Return samples: the newest group first, each group's in their order."""
        return self._ask(lambda db: samples.samples(db, wanted, ask, until, self._search_s))

    def sample(self, place: SamplePlace, *, until: float | None = None) -> SampleDetail | None:
        """Return one sample; None: there is none. Its tokens are on the log: see ``PastRecords``."""
        return self._ask(lambda db: groups.sample(db, place, until))

    def task(self, task_id: str, *, until: float | None = None) -> TaskTimeline | None:
        """Return the whole way of a task, with its groups side by side; None: nothing is known of it."""
        return self._ask(lambda db: mesh.task(db, task_id, until))

    def reward_histogram(
        self, wanted: SampleFilter = ALL_SAMPLES, *, bins: int = 40, until: float | None = None
    ) -> Histogram:
        """Return how the rewards of samples are spread; of more than ``MAX_HISTOGRAM_SAMPLES``, those of the newest."""
        return self._ask(lambda db: samples.histogram(db, wanted, bins, until))

    def metric_names(self) -> list[str]:
        """Return the names of all metrics: those of steps and of batches, and what came onto the log (``log/...``)."""
        return self._ask(mesh.metric_names)

    def metrics(
        self,
        names: Sequence[str],
        *,
        by: Axis = "step",
        points: int = 500,
        trainer: str | None = None,
        until: float | None = None,
    ) -> list[Series]:
        """Return a series of each name, for charts: at most so many points, in the order of the axis.

        Of steps they are those of a trainer's last run; None: of the first of ``trainers``.
        """
        return self._ask(lambda db: mesh.metrics(db, list(names), by=by, points=points, trainer=trainer, until=until))

    def versions(
        self, ask: PageAsk = FIRST_PAGE, *, model: str | None = None, until: float | None = None
    ) -> RowPage[PublishedRow]:
        """Return the versions that were published, the newest first."""
        return self._ask(lambda db: training.versions(db, ask, model, until))

    def choices(self, model: str, *, rows: int, until: float | None = None) -> list[ChoiceRow]:
        """Return who chose which version to be served, and when, the newest choice first."""
        return self._ask(lambda db: training.choices(db, model, rows, until))

    def version(self, number: int, *, model: str | None = None, until: float | None = None) -> VersionDetail | None:
        """Return one version; None: it was not published. Its batch and step lead on to its tasks."""
        return self._ask(lambda db: training.version(db, number, model, until))

    def fleet(self, *, until: float | None = None) -> list[ExplorerRow]:
        """Return the explorers as they last said, by name, those too that were long silent."""
        return self._ask(lambda db: mesh.fleet(db, until))

    def settings(self, *, service: str | None = None, until: float | None = None) -> list[SettingsRow]:
        """Return what each service was started with last, by service and name."""
        return self._ask(lambda db: mesh.settings(db, service, until))

    def dead_letters(
        self, wanted: DeadLetterFilter = ALL_DEAD_LETTERS, ask: PageAsk = FIRST_PAGE, *, until: float | None = None
    ) -> RowPage[DeadLetterRow]:
        """Return records that could not be taken, the newest first."""
        return self._ask(lambda db: mesh.dead_letters(db, wanted, ask, until))

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
