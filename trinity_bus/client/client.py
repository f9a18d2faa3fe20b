"""``Client``: submit tasks, take their results as they count, and what the batch came to. Typed throughout.

::

    NEW --start()--> STARTED --stop()--> STOPPED --start()--> STARTED       (each again: nothing)

    submit(tasks) --> BatchHandle --async for--> TaskResult, the moment that it counts ---> all are there: the end
                         |--result()----------> BatchResult, when the batch has ended
                         '--abort()

A batch is trained on, or is an evaluation, as a whole; ``Scheduler`` has tasks that are neither. Every accepted task
ends in one result, also where it fails or is cut off; one that the coordinator refuses has a failed result here.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
results cannot be read any more     every iteration raises why
the client is stopped               ``NotStartedError`` from iterations that wait; batches go on
this process dies                   its batches go on; ``RolloutCoordinator`` finalizes them from anywhere
==================================  ===================================================================================
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from schemas import BatchResult, ExperienceGroup, Task, TaskResult
from schemas.groups.pieces import join_groups
from schemas.record import BatchType
from schemas.topics import DEAD_LETTERS, EXPERIENCES, RESULTS
from trinity_bus import awake
from trinity_bus.bus import Bus, Received, TopicFollower
from trinity_bus.client.channel import SILENCE_S
from trinity_bus.client.connection import Connected, Connection
from trinity_bus.client.results import Rejection, refused, rejection_of
from trinity_bus.client.tasks import BatchId, batch_name, batch_of_task, given_task_id, send_tasks, sent_by, tasks_of
from trinity_bus.config import Settings
from trinity_bus.errors import NotStartedError, RecordGoneError, RefusedError

_STOPPED: Final = "the client was stopped; the batch goes on"


class Client(Connected):
    """Tasks to the mesh, and their results. Its batches go on when it is stopped. Arguments: see :class:`Connected`."""

    def __init__(self, settings: Settings | None = None, *, bus: Bus | None = None, name: str = "client") -> None:
        super().__init__(settings, bus, name, (RESULTS, DEAD_LETTERS, EXPERIENCES))
        # Those of which results are to come, by the names of their batches on the log.
        self._handles: dict[str, BatchHandle] = {}

    async def _opened(self, connection: Connection) -> None:
        bus = connection.bus
        follower = TopicFollower(lambda start: bus.reader(RESULTS, DEAD_LETTERS, start=start), self._take, self._fail)
        await follower.start()
        connection.stack.push_async_callback(follower.stop)

    async def _closing(self) -> None:
        self._fail(NotStartedError(_STOPPED))
        self._handles.clear()

    async def submit(
        self,
        tasks: Sequence[Task],
        *,
        batch_id: BatchId | None = None,
        batch_type: BatchType | None = None,
        min_wait_num: int | None = None,
    ) -> "BatchHandle":
        """Submit tasks, at least one, as one batch: as ``RolloutCoordinator.submit_batch`` does.

        Absent, ``batch_id`` is made up, and ``batch_type`` is what all tasks say.
        """
        connection = self.connection
        given = f"batch-{uuid.uuid4().hex[:12]}" if batch_id is None else batch_id
        name, kind = batch_name(given), _type_of(tasks, batch_type)
        named = tasks_of(tasks, name, kind, len(tasks), producer=connection.channel.producer)
        enough = None if min_wait_num is None else min(min_wait_num, len(named))
        await connection.submit(given, kind, len(named), enough)
        handle = BatchHandle(connection, given, kind, named)
        if self._connection is connection:
            self._handles[name] = handle
        else:
            handle.fail(NotStartedError(_STOPPED))
        await send_tasks(connection.producer, named)
        return handle

    async def send(self, tasks: Sequence[Task]) -> int:
        """Send tasks that form automatic batches, or name theirs, and nothing more; return how many, once durable."""
        connection = self.connection
        return await send_tasks(connection.producer, sent_by(connection.channel.producer, tasks))

    async def experiences(self, result: TaskResult) -> ExperienceGroup | None:
        """Return the samples of a train task, None where it came to none. RecordGoneError: they cannot be read."""
        positions = [part.position for part in result.parts if part.position is not None]
        found = await self.connection.bus.fetch(EXPERIENCES, positions) if positions else []
        groups = []
        for received in found:
            if not isinstance(received.record, ExperienceGroup):
                raise RecordGoneError(f"{received.place} cannot be read: {received.record.detail}")
            groups.append(received.record)
        return join_groups(groups) if groups else None

    def _take(self, received: Received[Any]) -> None:
        ended = rejection_of(received) if received.topic is DEAD_LETTERS else received.record
        if not isinstance(ended, Rejection | TaskResult):
            return
        name = batch_of_task(ended.task_id)
        handle = self._handles.get(name)
        if handle is not None:
            handle.take(ended)
            if not handle.unfinished:
                del self._handles[name]

    def _fail(self, error: BaseException) -> None:
        for handle in self._handles.values():
            handle.fail(error)


class BatchHandle:
    """A batch that was submitted. Iterate it for the results of its tasks; each is given once."""

    def __init__(self, connection: Connection, batch_id: BatchId, batch_type: BatchType, tasks: Sequence[Task]) -> None:
        self.batch_id = batch_id
        self.batch_type: BatchType = batch_type
        self._connection = connection
        self._unfinished = {task.task_id: task for task in tasks}
        self._ready: deque[TaskResult] = deque()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def unfinished(self) -> int:
        """How many tasks have no result yet."""
        return len(self._unfinished)

    def __aiter__(self) -> AsyncIterator[TaskResult]:
        return self

    async def __anext__(self) -> TaskResult:
        """Wait for the next result, and take it. Its ``task_id`` is as it was given."""
        while not self._ready:
            if not self._unfinished:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            try:
                async with awake.timeout(SILENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                await self._connection.channel.ask_whether_present()
        return self._ready.popleft()

    async def result(self, *, timeout: float | None = None) -> BatchResult:  # noqa: ASYNC109 - the coordinator keeps it
        """Wait until the batch has ended: see ``RolloutCoordinator.finalize_train_batch``. Its results stay."""
        return await self._connection.finalize(self.batch_id, self.batch_type, timeout)

    async def abort(self, reason: str, *, keep_partial_results: bool = False) -> None:
        """Abort the batch: see ``RolloutCoordinator.abort_batch``. Nothing happens where it has ended."""
        await self._connection.abort(self.batch_id, reason, keep_partial_results=keep_partial_results)

    def take(self, ended: TaskResult | Rejection) -> None:
        """Note how a task ended; the client calls it. A second word about the same task changes nothing."""
        task = self._unfinished.pop(ended.task_id, None)
        if task is None:
            return
        result = refused(task, ended.why) if isinstance(ended, Rejection) else ended
        self._ready.append(result.model_copy(update={"task_id": given_task_id(ended.task_id)}))
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Nothing more can be read; the client calls it."""
        self._failure = error
        self._changed.set()


def _type_of(tasks: Sequence[Task], batch_type: BatchType | None) -> BatchType:
    if not tasks:
        raise RefusedError("a batch needs at least one task")
    types = {task.batch_type for task in tasks} if batch_type is None else {batch_type}
    if len(types) > 1:
        raise RefusedError("the tasks are of both types, train and eval: submit them as two batches, or say batch_type")
    return types.pop()
