"""``Scheduler``: tasks to whichever explorers have room, their results one by one.

::

    NEW --start()--> STARTED --stop()--> STOPPED --start()--> STARTED
                     (each again: nothing)

    schedule --> open batch on the log --> coordinator --> explorers
                                               |               '--> experiences ----.
    get_... <-- results, read as they are written <--'    read by position <--------'

A batch of a scheduler is an *open* batch of the coordinator (see ``schemas.batch``) under a name of its own: several
schedulers, in as many processes, may all number their batches 1, 2, 3::

    schedule                       every result is taken, it is cleaned up or aborted, stop
    -------> OPEN (SubmitBatch) -------------------------------------------------> CLOSED (CancelTasks, AbortBatch)
                ^                                                                     |
                '----------------- schedule, under another name on the log -----------'

To close a batch, its unfinished tasks are ended (the coordinator writes a result for each that it has), the batch is
aborted, so that tasks which the coordinator has yet to read are refused, and everything that was written meanwhile is
read. Then no result can come any more. If no coordinator answers, the batch stays OPEN, and can be closed later.

What was scheduled counts as *outstanding* until its result is read, and a result as *there* until it is taken; nothing
that has been taken is counted again. See :mod:`trinity_bus.client.results` for when a wait is over.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
a batch cannot be opened, or not    the awaited ``schedule`` and every later wait for the batch raise it, until
all of its tasks sent               ``abort_batch``
the coordinator refuses a task      its status says so; it is in the dead letters too
a payload cannot be read            the error is raised and no result is taken: the next call has all of them
a caller gives up waiting           nothing is lost; the next call has all results
another client aborts the batch     the statuses of its tasks say so
the scheduler is stopped            ``NotStartedError`` from calls, and from waits for a batch that stays open
this process dies                   its open batches stay until they are aborted (``trinity-bus abort``); their tasks
                                    run to their ends, and the results are on the log
==================================  ===================================================================================
"""

import asyncio
import contextlib
import logging
import math
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from schemas import (
    AbortBatch,
    CancelTasks,
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ExplorerLeft,
    Position,
    RunnersReport,
    SubmitBatch,
    Task,
    TaskResult,
)
from schemas.topics import COORDINATOR_EVENTS, DEAD_LETTERS, EXPERIENCES, EXPLORER_EVENTS, RESULTS
from trinity_bus import awake
from trinity_bus.bus import Bus, Received, TopicFollower, Undecodable
from trinity_bus.client.channel import SILENCE_S
from trinity_bus.client.connection import Connected, Connection, check_reply, tell_unused
from trinity_bus.client.results import (
    CLEANUP,
    BatchTracker,
    CompletedTaskResult,
    OpenBatch,
    Rejection,
    ScheduledBatch,
    Status,
    rejection_of,
)
from trinity_bus.client.tasks import BatchId, batch_name, batch_of_task, send_tasks, tasks_of
from trinity_bus.config import Settings
from trinity_bus.errors import NoCoordinatorError, NotStartedError, RecordGoneError, RefusedError, TimedOutError
from trinity_bus.view import MeshFollower, MeshState, runner_values, state_table

log = logging.getLogger(__name__)

_FLEET: Final = (CoordinatorHeartbeat, ExplorerHeartbeat, ExplorerLeft, RunnersReport)


class Scheduler(Connected):
    """Runs tasks on the fleet.

    ``start`` also waits until a coordinator is heard (NoCoordinatorError where none is). ``stop`` ends every batch that
    is open, its unfinished tasks cut off; where no coordinator answers (NoCoordinatorError) they stay open on the log.
    Results that are there can be taken after the next ``start``. Models are not used, with a line in the log: the
    mesh's explorers answer. Other arguments: see :class:`Connected`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        rollout_model: object = None,
        auxiliary_models: object = None,
        *,
        bus: Bus | None = None,
        name: str = "scheduler",
    ) -> None:
        tell_unused(rollout_model, auxiliary_models)
        self._settings = settings if settings is not None else Settings()
        topics = (RESULTS, EXPLORER_EVENTS, COORDINATOR_EVENTS, DEAD_LETTERS, EXPERIENCES)
        super().__init__(self._settings, bus, name, topics)
        self._suffix = uuid.uuid4().hex[:8]
        self._mesh: MeshFollower | None = None
        self._results: TopicFollower | None = None
        # Those that have tasks without a result, or results that have not been taken.
        self._batches: dict[BatchId, ScheduledBatch] = {}
        # Those of which results may come, by their names on the log.
        self._on_log: dict[str, tuple[ScheduledBatch, OpenBatch]] = {}
        self._names: Counter[BatchId] = Counter()  # how many names each id has had on the log
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._background: set[asyncio.Task[None]] = set()

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> asyncio.Future[None]:
        """Hand tasks out as soon as there is room; several calls for a batch add up.

        What is returned may be awaited: done when the tasks are durable. It raises what went wrong otherwise, and so
        does every later wait for the batch. RefusedError: nothing was scheduled. ``batch_id`` decides which go first:
        see ``trinity_bus.coordination.batches.dispatch_queue.sort_batch_id``.
        """
        if not tasks:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing
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
            tracker = BatchTracker(batch_id, self._settings.coordinator.group_size)
            batch = self._batches[batch_id] = ScheduledBatch(tracker)
        if batch.open is None:
            batch.open = target
            self._names[batch_id] += 1
            self._on_log[target.name] = (batch, target)
        target.task_names.update(task.task_id for task in named)
        batch.tracker.schedule(named)
        target.sending = asyncio.create_task(self._send(connection, batch, target, named, target.sending))
        told = asyncio.shield(target.sending)
        # It may be left alone: then the failure is told by the next wait.
        told.add_done_callback(lambda future: future.cancelled() or future.exception())
        return told

    async def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it ends the wait without an error
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> tuple[list[Status], list[bytes]]:
        """Wait for results of a batch, and take those that are there: statuses in the order of scheduling, payloads.

        Args:
            min_num: Results that are enough: when they are there, the others are waited for ``wait_after_min_s`` more.
            timeout: Seconds. Absent, or 0: what all attempts at one task may take together.
            clear_timeout_tasks: Whether tasks without a result are then cut off; else a later call has their results.
            return_partial_tasks: Whether a task that is cut off counts with the runs that it has done.
        """
        results = await self._get(batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks, payloads=True)
        return _split(results)

    async def get_statuses(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it ends the wait without an error
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> list[Status]:
        """Return the same without payloads: no experience is read."""
        results = await self._get(batch_id, min_num, timeout, clear_timeout_tasks, return_partial_tasks, payloads=False)
        return _split(results)[0]

    async def drain_batch_payload_results(self, batch_id: BatchId) -> tuple[list[Status], list[bytes]]:
        """Take what is there, without waiting for anything."""
        batch = self._batches.get(batch_id)
        return ([], []) if batch is None else _split(await self._take_completed(batch, payloads=True))

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Forget the results of a batch that are there. Tasks without one go on, and a later call has theirs."""
        if (batch := self._batches.get(batch_id)) is not None:
            batch.tracker.take(batch.tracker.completed())
            self._forget_if_empty(batch)

    async def abort_batch(
        self, batch_id: BatchId, return_partial_tasks: bool = False, restart_runners: bool = True
    ) -> None:
        """Cut the unfinished tasks of a batch off, if it is known. Results that are there stay, to be taken."""
        if (batch := self._batches.get(batch_id)) is not None:
            await self._close(batch, CLEANUP, partly=return_partial_tasks, restart=restart_runners)
            self._forget_if_empty(batch)

    def has_step(self, batch_id: BatchId) -> bool:
        """Whether a batch has tasks without a result, or results that have not been taken."""
        batch = self._batches.get(batch_id)
        return batch is not None and not batch.tracker.empty

    async def wait_all(self, timeout: float | None = None, clear_timeout_tasks: bool = True) -> None:  # noqa: ASYNC109 - it begins anew with each result
        """Wait until no task of any batch is without a result. Nothing is taken. Raises TimedOutError.

        ``timeout``: longest time without a result, in seconds. With ``clear_timeout_tasks`` all unfinished tasks are
        then cut off, and their runners stopped.
        """
        limit = timeout or self._default_timeout()
        batches, finished, since = self._batches, 0, awake.now()
        while any(batch.tracker.unfinished for batch in batches.values()):
            now, before = awake.now(), finished
            # Fewer, where a batch of which every result was taken is forgotten.
            finished = sum(batch.tracker.finished for batch in batches.values())
            since = now if finished > before else since
            if now >= since + limit:
                break
            await self._change(since + limit - now, batches.values())
        else:
            return
        outstanding = {name for batch in batches.values() for name in batch.tracker.outstanding}
        running = len(outstanding & self._fleet.running_tasks())
        if clear_timeout_tasks:
            cut_off = list(batches.values())
            await asyncio.gather(*(self._close(batch, CLEANUP, restart=True) for batch in cut_off))
            for batch in cut_off:
                self._forget_if_empty(batch)
        raise TimedOutError(
            f"Timeout after {limit} seconds. Still have {len(outstanding) - running} pending tasks and "
            f"{running} running tasks."
        )

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """Limit of an attempt that starts now, in seconds; ``timeout``: the most, where absent that of the settings."""
        coordinator = self._coordinator()
        measured = coordinator.dynamic_timeout_s
        if not timeout:
            return measured
        return timeout if measured == coordinator.max_timeout_s else min(timeout, measured)

    def get_key_state(self, key: str) -> dict[str, Any]:
        """Return one value of each runner that has it, such as ``workflow_id`` or ``model_version``, by runner."""
        return {name: state[key] for name, state in self.get_all_state().items() if key in state}

    def get_runner_state(self, runner_id: str) -> dict[str, Any]:
        """Return the state of one runner, ``<explorer>/<number>``; empty where there is none of that name."""
        return self.get_all_state().get(runner_id, {})

    def get_all_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of every runner in the fleet, as last told; see ``trinity_bus.view.runner_values``."""
        return {runner.runner: runner_values(runner) for runner in self._fleet.runners()}

    def print_all_state(self) -> None:
        """Log the states of all runners as an aligned table."""
        for line in state_table(self.get_all_state()).splitlines():
            log.info("%s", line)

    async def _closing(self) -> None:
        # Every batch is closed; they stay open on the log where no coordinator answers (NoCoordinatorError).
        closed = [self._close(batch, "the scheduler stops") for batch in self._batches.values()]
        outcomes = await asyncio.gather(*closed, *self._background, return_exceptions=True)
        self._fail(NotStartedError("the scheduler was stopped"))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _opened(self, connection: Connection) -> None:
        bus, self._failure = connection.bus, None
        results = self._results = TopicFollower(
            lambda start: bus.reader(RESULTS, DEAD_LETTERS, start=start), self._take, self._fail, written=True
        )
        await results.start()
        connection.stack.push_async_callback(results.stop)
        # Most of what explorers say is the coordinator's business, and not even decoded here.
        state = MeshState(alive_s=self._settings.coordinator.explorer_timeout_s)
        self._mesh = mesh = MeshFollower(
            bus, EXPLORER_EVENTS, COORDINATOR_EVENTS, start="end", state=state, expect=_FLEET, on_end=self._fail
        )
        await connection.stack.enter_async_context(mesh)
        try:
            async with awake.timeout(SILENCE_S):
                while mesh.state.coordinator is None:
                    await mesh.changed(SILENCE_S)
        except TimeoutError:
            raise NoCoordinatorError(
                f"no coordinator of namespace {bus.settings.namespace!r} was heard within {SILENCE_S:g} s: start one "
                "with `trinity-bus run coordinator`, or set TRINITY_BUS_MESH__NAMESPACE to that of the one that runs"
            ) from None

    async def _get(
        self,
        batch_id: BatchId,
        min_num: int | None,
        timeout_s: float | None,
        clear: bool,
        partial: bool,
        *,
        payloads: bool,
    ) -> list[CompletedTaskResult]:
        batch = self._batches.get(batch_id)
        if batch is None:
            return []
        tracker = batch.tracker
        known = tracker.unfinished + tracker.ready
        if min_num is not None and min_num > known:
            log.warning("batch %s has %d tasks, fewer than min_num %d", batch_id, known, min_num)
        limit = timeout_s or self._default_timeout()
        is_in_time = await self._wait(batch, limit, min_num)
        if not is_in_time:
            log.error("batch %s: %d tasks have no result after %g s", batch_id, tracker.unfinished, limit)
        if tracker.unfinished and clear:
            await self._close(batch, CLEANUP, partly=partial, restart=not is_in_time)
        return await self._take_completed(batch, payloads=payloads)

    async def _wait(self, batch: ScheduledBatch, limit_s: float, min_num: int | None) -> bool:
        # Returns whether it was over before its time was up.
        until, after_s = awake.now() + limit_s, self._coordinator().wait_after_min_s
        enough_at = math.inf
        while batch.tracker.unfinished:
            now = awake.now()
            # Another caller may have taken some meanwhile.
            is_enough = min_num is not None and batch.tracker.ready >= min_num
            enough_at = min(enough_at, now + after_s) if is_enough else math.inf
            if now >= min(until, enough_at):
                return now >= enough_at
            await self._change(min(until, enough_at) - now, [batch])
        return True

    async def _change(self, pause_s: float, batches: Iterable[ScheduledBatch]) -> None:
        # Wait until something has changed, or for so long; raises what went wrong with sending or reading.
        if self._failure is not None:
            raise self._failure
        for batch in batches:
            if batch.failure is not None:
                raise batch.failure
        with contextlib.suppress(TimeoutError):
            async with awake.timeout(pause_s):
                await self._changed.wait()

    async def _take_completed(self, batch: ScheduledBatch, *, payloads: bool) -> list[CompletedTaskResult]:
        # None is taken where a payload cannot be read (RecordGoneError).
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
        self._forget_if_empty(batch)
        return results

    async def _payloads(self, positions: Sequence[Position]) -> list[bytes]:
        if not positions:
            return []
        found = await self.connection.bus.fetch(EXPERIENCES, positions, expect=())
        for received in found:
            if isinstance(received.record, Undecodable):
                raise RecordGoneError(f"{received.place} cannot be read: {received.record.detail}")
        return [received.raw for received in found]

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
                reply = await connection.channel.ask(SubmitBatch, batch_id=target.name, batch_type=target.batch_type)
                check_reply(reply, batch.tracker.batch_id)
                target.submitted = True
            await send_tasks(connection.producer, tasks)
        except Exception as error:
            batch.failure = error
            self._notify()
            raise

    async def _close(self, batch: ScheduledBatch, reason: str, *, partly: bool = False, restart: bool = False) -> None:
        # End a batch on the log, if it is open; its results are there then. ``partly``: whether a task counts with the
        # runs that it has done; ``restart``: whether runners that are at its tasks are stopped at once.
        target, batch.open = batch.open, None
        if target is None:
            return
        target.closing = True
        try:
            await self._end_on_log(target, reason, partly=partly, restart=restart)
        except BaseException:
            target.closing = False
            if batch.open is None:
                batch.open = target
            raise
        batch.tracker.give_up(target.task_names)
        batch.failure = None
        del self._on_log[target.name]
        self._notify()

    async def _end_on_log(self, target: OpenBatch, reason: str, *, partly: bool, restart: bool) -> None:
        # Amid a stop, too.
        ask = partial((self._connection or self.connection).channel.ask, batch_id=target.name, reason=reason)
        if target.sending is not None and not target.sending.done():
            target.sending.cancel()
            await asyncio.wait([target.sending])
        # It may be refused: a batch that nobody knows has nothing to be cut off.
        await ask(CancelTasks, return_partial_tasks=partly, restart_runners=restart)
        await ask(AbortBatch)
        if self._results is not None:
            # Those of open transactions too.
            await self._results.caught_up()

    def _forget_if_empty(self, batch: ScheduledBatch) -> None:
        # If nothing is left of a batch, it is ended on the log, in the background.
        if not batch.tracker.empty or batch.failure is not None:
            return
        self._batches.pop(batch.tracker.batch_id, None)
        if batch.open is not None:
            work: Coroutine[Any, Any, None] = self._close(batch, "every result has been taken")
            closing = asyncio.create_task(work)
            self._background.add(closing)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._background.discard(closing)
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            log.warning("a batch whose results have all been taken stays open on the log: %s", error)

    def _take(self, received: Received[Any]) -> None:
        # A record of ``results`` or ``dead-letters``.
        ended = rejection_of(received) if received.topic is DEAD_LETTERS else received.record
        if not isinstance(ended, Rejection | TaskResult) or batch_of_task(ended.task_id) not in self._on_log:
            return
        batch, target = self._on_log[batch_of_task(ended.task_id)]
        if target.closing and (isinstance(ended, Rejection) or ended.status == "aborted"):
            # Cut off because the caller does not wait for it any more.
            batch.tracker.give_up([ended.task_id])
        else:
            batch.tracker.accept(ended)
        self._notify()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._notify()

    def _notify(self) -> None:
        # Whoever waits is woken, whoever will wait is not.
        self._changed.set()
        self._changed.clear()

    def _next_name(self, batch_id: BatchId) -> str:
        number = self._names[batch_id] + 1
        return batch_name(f"{batch_name(batch_id)}@{self._suffix}" + (f".{number}" if number > 1 else ""))

    def _default_timeout(self) -> float:
        # What all attempts at one task may take together, in seconds.
        coordinator = self._coordinator()
        return coordinator.max_timeout_s * coordinator.attempts_per_task

    def _coordinator(self) -> CoordinatorHeartbeat:
        coordinator = self._fleet.coordinator
        if coordinator is None:
            raise NotStartedError("Scheduler is not started: await start() first.")
        return coordinator

    @property
    def _fleet(self) -> MeshState:
        # Empty before the first start.
        return MeshState() if self._mesh is None else self._mesh.state


def _split(results: Sequence[CompletedTaskResult]) -> tuple[list[Status], list[bytes]]:
    return [r.status for r in results], [payload for r in results for payload in r.experience_payloads]
