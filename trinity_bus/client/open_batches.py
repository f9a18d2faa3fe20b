"""The batches of one scheduler, as books here and as open batches on the log.

::

    schedule                       every result is taken, or it is cleaned up
    -------> OPEN (SubmitBatch) -------------------------------------------------> CLOSED (CancelTasks, AbortBatch)
                ^                                                                     |
                '----------------- schedule, under another name on the log -----------'

To close a batch, its unfinished tasks are ended (the coordinator writes a result for each that it has), the batch is
aborted, so that tasks which the coordinator has yet to read are refused, and everything that was written meanwhile is
read. Then no result can come any more. If no coordinator answers, the batch stays OPEN, and can be closed later.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import Position, Task, TaskResult
from schemas.record import BatchType
from schemas.topics import DEAD_LETTERS, EXPERIENCES
from trinity_bus import awake
from trinity_bus.bus import Received, Undecodable
from trinity_bus.client.batch_tracker import BatchTracker
from trinity_bus.client.connection import Connection
from trinity_bus.client.errors import check_reply
from trinity_bus.client.ids import BatchId, batch_name, batch_of_task, tasks_of
from trinity_bus.client.results import CompletedTaskResult, rejection_of
from trinity_bus.client.tasks import send_tasks
from trinity_bus.errors import NotStartedError, RecordGoneError, RefusedError

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """One batch on the log."""

    name: str
    batch_type: BatchType
    task_names: set[str] = field(default_factory=set)
    submitted: bool = False
    closing: bool = False
    sending: asyncio.Task[None] | None = None  # the last ``schedule`` of it; each waits for the one before


@dataclass(slots=True, eq=False)
class ScheduledBatch:
    """One batch as its caller knows it."""

    tracker: BatchTracker
    open: OpenBatch | None = None
    failure: Exception | None = None  # why not all of its tasks are on the log
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)  # whoever takes results has it


class OpenBatches:
    """All batches of a scheduler. ``default_runs``: of a task that names no number."""

    def __init__(self, default_runs: int) -> None:
        self._default_runs = default_runs
        self._suffix = uuid.uuid4().hex[:8]
        self._connection: Connection | None = None
        self._caught_up: Callable[[], Awaitable[None]] | None = None
        self._batches: dict[BatchId, ScheduledBatch] = {}
        # Those of which results may come, by their names on the log.
        self._on_log: dict[str, tuple[ScheduledBatch, OpenBatch]] = {}
        self._names: dict[BatchId, int] = {}  # how many names each id has had on the log
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._background: set[asyncio.Task[None]] = set()

    def connect(self, connection: Connection, caught_up: Callable[[], Awaitable[None]]) -> None:
        """Work over an open connection from now on.

        ``caught_up`` waits until every record that is on the log has been passed to ``take``, those of open
        transactions too.
        """
        self._connection, self._caught_up, self._failure = connection, caught_up, None

    async def disconnect(self, reason: str) -> None:
        """Close every batch; they stay open on the log where no coordinator answers (NoCoordinatorError)."""
        try:
            closed = [self.close(batch, reason) for batch in self._batches.values()]
            for outcome in await asyncio.gather(*closed, *self._background, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        finally:
            self._connection = self._caught_up = None

    @property
    def connection(self) -> Connection:
        """What it works over; NotStartedError where there is nothing."""
        if self._connection is None:
            raise NotStartedError("Scheduler is not started: await start() first.")
        return self._connection

    @property
    def all(self) -> list[ScheduledBatch]:
        """Every batch that has tasks without a result, or results that have not been taken."""
        return list(self._batches.values())

    def get(self, batch_id: BatchId) -> ScheduledBatch | None:
        return self._batches.get(batch_id)

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> asyncio.Future[None]:
        """See ``Scheduler.schedule``; at least one task."""
        connection, batch_type = self.connection, tasks[0].batch_type
        if any(task.batch_type != batch_type for task in tasks):
            raise RefusedError(f"Batch {batch_id}: its tasks are of both types, train and eval.")
        batch = self._batches.get(batch_id)
        target = None if batch is None else batch.open
        if target is None:
            target = OpenBatch(self._next_name(batch_id), batch_type)
        elif target.batch_type != batch_type:
            raise RefusedError(f"Batch {batch_id} is {target.batch_type}, its tasks cannot be {batch_type}.")
        named = tasks_of(tasks, target.name, batch_type, None, target.task_names, producer=connection.channel.producer)
        # Nothing is changed before this line, and nothing can fail after it.
        if batch is None:
            batch = self._batches[batch_id] = ScheduledBatch(BatchTracker(batch_id, self._default_runs))
        if batch.open is None:
            batch.open = target
            self._names[batch_id] = self._names.get(batch_id, 0) + 1
            self._on_log[target.name] = (batch, target)
        target.task_names.update(task.task_id for task in named)
        batch.tracker.schedule(named)
        target.sending = asyncio.create_task(self._send(connection, batch, target, named, target.sending))
        told = asyncio.shield(target.sending)
        # It may be left alone: then the failure is told by the next wait.
        told.add_done_callback(lambda future: future.cancelled() or future.exception())
        return told

    async def change(self, pause_s: float, batches: Sequence[ScheduledBatch]) -> None:
        """Wait until something has changed, or for so many seconds; raise what went wrong with sending or reading."""
        if self._failure is not None:
            raise self._failure
        for batch in batches:
            if batch.failure is not None:
                raise batch.failure
        with contextlib.suppress(TimeoutError):
            async with awake.timeout(pause_s):
                await self._changed.wait()

    async def take_completed(self, batch: ScheduledBatch, *, payloads: bool) -> list[CompletedTaskResult]:
        """Return the results that are there, taken; none is taken where a payload cannot be read (RecordGoneError)."""
        async with batch.taking:
            wrappers = batch.tracker.completed()
            positions = [position for wrapper in wrappers for position in wrapper.positions] if payloads else []
            # Expecting no type, they are left as they are on the log.
            found = iter(await self._payloads(positions))
            results = [
                CompletedTaskResult(
                    batch.tracker.batch_id,
                    wrapper.task_id,
                    wrapper.status,
                    [next(found) for _ in wrapper.positions] if payloads else [],
                )
                for wrapper in wrappers
                if wrapper.status is not None
            ]
            batch.tracker.take(wrappers)
        self.forget_if_empty(batch)
        return results

    async def _payloads(self, positions: Sequence[Position]) -> list[bytes]:
        if not positions:
            return []
        found = await self.connection.bus.fetch(EXPERIENCES, positions, expect=())
        for received in found:
            if isinstance(received.record, Undecodable):
                raise RecordGoneError(f"{received.place} cannot be read: {received.record.detail}")
        return [received.raw for received in found]

    async def close(self, batch: ScheduledBatch, reason: str, *, partial: bool = False, restart: bool = False) -> None:
        """End a batch on the log, if it is open. Its results are there when this returns.

        ``partial``: whether a task counts with the runs that it has done. ``restart``: whether runners that are at its
        tasks are stopped at once. It stays open where no coordinator answers (NoCoordinatorError).
        """
        target, batch.open = batch.open, None
        if target is None:
            return
        target.closing = True
        try:
            await self._end_on_log(target, reason, partial=partial, restart=restart)
        except BaseException:
            target.closing = False
            if batch.open is None:
                batch.open = target
            raise
        batch.tracker.give_up(target.task_names)
        batch.failure = None
        del self._on_log[target.name]
        self._notify()

    def forget_if_empty(self, batch: ScheduledBatch) -> None:
        """If nothing is left of a batch, end it on the log, in the background."""
        if not batch.tracker.empty or batch.failure is not None:
            return
        self._batches.pop(batch.tracker.batch_id, None)
        if batch.open is not None:
            work: Coroutine[Any, Any, None] = self.close(batch, "every result has been taken")
            closing = asyncio.create_task(work)
            self._background.add(closing)
            closing.add_done_callback(self._closed)

    def take(self, received: Received[Any]) -> None:
        """Take in a record of ``results`` or ``dead-letters``."""
        if received.topic is DEAD_LETTERS:
            rejection = rejection_of(received)
            known = None if rejection is None else self._on_log.get(batch_of_task(rejection.task_name))
            if rejection is None or known is None or known[1].closing:
                return
            known[0].tracker.refuse(rejection.task_name, rejection.why)
        else:
            result = received.record
            if not isinstance(result, TaskResult) or result.batch_id not in self._on_log:
                return
            batch, target = self._on_log[result.batch_id]
            if result.status == "aborted" and target.closing:
                # Cut off because the caller does not wait for it any more.
                batch.tracker.give_up([result.task_id])
            else:
                batch.tracker.accept(result)
        self._notify()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        self._notify()

    async def _send(
        self,
        connection: Connection,
        batch: ScheduledBatch,
        target: OpenBatch,
        tasks: Sequence[Task],
        previous: asyncio.Task[None] | None,
    ) -> None:
        try:
            if previous is not None:
                await asyncio.shield(previous)
            if not target.submitted:
                reply = await connection.channel.submit(target.name, batch_type=target.batch_type)
                check_reply(reply, batch.tracker.batch_id)
                target.submitted = True
            await send_tasks(connection.producer, tasks)
        except Exception as error:
            batch.failure = error
            self._notify()
            raise

    async def _end_on_log(self, target: OpenBatch, reason: str, *, partial: bool, restart: bool) -> None:
        connection, caught_up = self.connection, self._caught_up
        if target.sending is not None and not target.sending.done():
            target.sending.cancel()
            await asyncio.wait([target.sending])
        channel = connection.channel
        # It may be refused: a batch that nobody knows has nothing to be cut off.
        await channel.cancel_tasks(target.name, reason=reason, return_partial_tasks=partial, restart_runners=restart)
        await channel.abort(target.name, reason=reason)
        if caught_up is not None:
            await caught_up()

    def _next_name(self, batch_id: BatchId) -> str:
        number = self._names.get(batch_id, 0) + 1
        return batch_name(f"{batch_name(batch_id)}@{self._suffix}" + (f".{number}" if number > 1 else ""))

    def _notify(self) -> None:
        # Whoever waits is woken, whoever will wait is not.
        self._changed.set()
        self._changed.clear()

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._background.discard(closing)
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            log.warning("a batch whose results have all been taken stays open on the log: %s", error)
