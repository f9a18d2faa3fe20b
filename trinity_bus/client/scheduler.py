"""``Scheduler``: tasks to whichever explorers have room, their results one by one.

::

    NEW --start()--> STARTED --stop()--> STOPPED --start()--> STARTED
                     (each again: nothing)

    schedule --> open batch on the log --> coordinator --> explorers
                                               |               '--> experiences ----.
    get_... <-- results, read as they are written <--'    read by position <--------'

A batch of a scheduler is an *open* batch of the coordinator (see ``schemas.batch``) under a name of its own: several
schedulers, in as many processes, may all number their batches 1, 2, 3. It is opened by the first ``schedule``, and
ended when every result has been taken, when it is cleaned up or aborted, or by ``stop``. An id may be used again: that
is another batch on the log. Waiting is for records on the log, not for the next look at a clock.

What was scheduled counts as *outstanding* until its result is read, and a result as *there* until it is taken; nothing
that has been taken is counted again. See :mod:`trinity_bus.client.batch_tracker` for when a wait is over.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
a batch cannot be opened, or not    the awaited ``schedule`` and every later wait for the batch raise it, until
all of its tasks sent               ``abort_batch``
the coordinator refuses a task      its status says so; it is in the dead letters too
a payload cannot be read            the error is raised and no result is taken: the next call has all of them
a caller gives up waiting           nothing is lost; the next call has all results
another client aborts the batch     the statuses of its tasks say so
this process dies                   its open batches stay until they are aborted (``trinity-bus abort``); their tasks
                                    run to their ends, and the results are on the log
==================================  ===================================================================================

Where the reference goes wrong, this does not: a failing runner costs an attempt and not the task; results that were
taken are not waited for again; ids can be used again; and an attempt is limited by ``dynamic_timeout()``, which starts
from the limit of one attempt, not from that of all attempts together.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from schemas import CoordinatorHeartbeat, ExplorerHeartbeat, ExplorerLeft, RunnersReport, Task
from schemas.topics import COORDINATOR_EVENTS, DEAD_LETTERS, EXPERIENCES, EXPLORER_EVENTS, RESULTS
from trinity_bus import awake
from trinity_bus.bus import Bus, TopicFollower
from trinity_bus.client.batch_tracker import Wait, WaitAll, WaitOutcome
from trinity_bus.client.connection import Connected, Connection, tell_unused
from trinity_bus.client.ids import BatchId
from trinity_bus.client.open_batches import OpenBatches
from trinity_bus.client.results import CLEANUP, CompletedTaskResult, Status
from trinity_bus.client.retry_policy import SILENCE_S
from trinity_bus.config import Settings
from trinity_bus.errors import NoCoordinatorError, NotStartedError, TimedOutError
from trinity_bus.view import MeshFollower, MeshState, runner_values, state_table

log = logging.getLogger(__name__)

_FLEET: Final = (CoordinatorHeartbeat, ExplorerHeartbeat, ExplorerLeft, RunnersReport)


class Scheduler(Connected):
    """Runs tasks on the fleet.

    ``start`` also waits until a coordinator is heard (NoCoordinatorError where none is). ``stop`` ends every batch that
    is open, its unfinished tasks cut off; where no coordinator answers (NoCoordinatorError) they stay open on the log.
    Results that are there can be taken after the next ``start``.

    Args:
        settings: Like ``bus`` and ``name``, as for every client: see :class:`Connected`.
        rollout_model: Not used, with a line in the log, like ``auxiliary_models``: the mesh's explorers answer.
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
        self._batches = OpenBatches(self._settings.coordinator.group_size)
        self._mesh: MeshFollower | None = None

    # ------------------------------------------------------------------------------------------------------ batches

    def schedule(self, tasks: Sequence[Task], batch_id: BatchId) -> asyncio.Future[None]:
        """Hand tasks out as soon as there is room; several calls for a batch add up.

        What is returned may be awaited: done when the tasks are durable. It raises what went wrong otherwise, and so
        does every later wait for the batch.

        Args:
            tasks: All of one type, that of the batch. Their ids are unique within the batch. None: nothing happens.
            batch_id: Decides which go first: see ``trinity_bus.coordination.batches.dispatch_queue.sort_batch_id``.

        Raises:
            RefusedError: Two have one id, the types differ, or the id cannot be a batch's. Nothing was scheduled.
            NotStartedError: The scheduler is not started.
        """
        if tasks:
            return self._batches.schedule(tasks, batch_id)
        nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        nothing.set_result(None)
        return nothing

    async def get_payload_results(
        self,
        batch_id: BatchId,
        min_num: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it ends the wait without an error
        clear_timeout_tasks: bool = True,
        return_partial_tasks: bool = False,
    ) -> tuple[list[Status], list[bytes]]:
        """Wait for results of a batch, and take those that are there.

        Args:
            batch_id: As scheduled. Of one that is not known there is nothing, at once.
            min_num: Results that are enough: when they are there, the others are waited for ``wait_after_min_s`` more.
                Absent, or more than there are: all.
            timeout: Seconds. Absent, or 0: what all attempts at one task may take together. When it has passed, what
                is there is taken; that is no error.
            clear_timeout_tasks: Whether tasks without a result are then cut off; their runners are stopped at once if
                the time was up. Otherwise a later call has their results.
            return_partial_tasks: Whether a task that is cut off counts with the runs that it has done.

        Returns:
            The statuses, in the order of scheduling, and one payload for each part of a train task that gave one: an
            ``ExperienceGroup``, encoded.

        Raises:
            NoCoordinatorError: None answers while tasks are to be cut off. Nothing was taken.
            RecordGoneError: A payload is not on the log any more. Nothing was taken.
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
        return ([], []) if batch is None else _split(await self._batches.take_completed(batch, payloads=True))

    def discard_completed_results(self, batch_id: BatchId) -> None:
        """Forget the results of a batch that are there. Tasks without one go on, and a later call has theirs."""
        batch = self._batches.get(batch_id)
        if batch is not None:
            batch.tracker.take(batch.tracker.completed())
            self._batches.forget_if_empty(batch)

    async def abort_batch(
        self, batch_id: BatchId, return_partial_tasks: bool = False, restart_runners: bool = True
    ) -> None:
        """Cut the unfinished tasks of a batch off, if it is known. Results that are there stay, to be taken.

        Args:
            return_partial_tasks: Whether a task counts with the runs that it has done.
            restart_runners: Whether runners that are at its tasks are stopped at once.

        Raises:
            NoCoordinatorError: None answers.
        """
        batch = self._batches.get(batch_id)
        if batch is not None:
            await self._batches.close(batch, CLEANUP, partial=return_partial_tasks, restart=restart_runners)
            self._batches.forget_if_empty(batch)

    def has_step(self, batch_id: BatchId) -> bool:
        """Whether a batch has tasks without a result, or results that have not been taken."""
        batch = self._batches.get(batch_id)
        return batch is not None and not batch.tracker.empty

    async def wait_all(self, timeout: float | None = None, clear_timeout_tasks: bool = True) -> None:  # noqa: ASYNC109 - it begins anew with each result
        """Wait until no task of any batch is without a result. Nothing is taken.

        ``timeout``: longest time without a result, in seconds. Absent, or 0: what all attempts at one task may take
        together. With ``clear_timeout_tasks`` all unfinished tasks are then cut off, and their runners stopped.

        Raises:
            TimedOutError: ``Timeout after T seconds. Still have P pending tasks and R running tasks.``
        """
        limit = timeout or self._default_timeout()
        wait = WaitAll([batch.tracker for batch in self._batches.all], awake.now(), limit)
        while (over := wait.over([batch.tracker for batch in self._batches.all], awake.now())) is None:
            await self._batches.change(wait.pause(awake.now()), self._batches.all)
        if over is WaitOutcome.COMPLETE:
            return
        outstanding = {name for batch in self._batches.all for name in batch.tracker.outstanding}
        running = len(outstanding & self._fleet.running_tasks())
        if clear_timeout_tasks:
            batches = self._batches.all
            await asyncio.gather(*(self._batches.close(batch, CLEANUP, restart=True) for batch in batches))
            for batch in batches:
                self._batches.forget_if_empty(batch)
        raise TimedOutError(
            f"Timeout after {limit} seconds. Still have {len(outstanding) - running} pending tasks and "
            f"{running} running tasks."
        )

    # -------------------------------------------------------------------------------------------------------- states

    def dynamic_timeout(self, timeout: float | None = None) -> float:
        """Limit of an attempt that starts now, in seconds.

        ``timeout``: what it would be without measurements; absent, or 0: ``coordinator.task_timeout_s``. That is the
        limit as long as the coordinator has not measured enough attempts, or is not to; else it bounds theirs.
        """
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

    # ------------------------------------------------------------------------------------------------------ internals

    async def _closing(self) -> None:
        await self._batches.disconnect("the scheduler stops")

    async def _opened(self, connection: Connection) -> None:
        bus, fail = connection.bus, self._batches.fail
        results = TopicFollower(
            lambda start: bus.reader(RESULTS, DEAD_LETTERS, start=start), self._batches.take, fail, written=True
        )
        await results.start()
        connection.stack.push_async_callback(results.stop)
        # Most of what explorers say is the coordinator's business, and not even decoded here.
        state = MeshState(alive_s=self._settings.coordinator.explorer_timeout_s)
        self._mesh = mesh = MeshFollower(
            bus, EXPLORER_EVENTS, COORDINATOR_EVENTS, start="end", state=state, expect=_FLEET, on_end=fail
        )
        await connection.stack.enter_async_context(mesh)
        self._batches.connect(connection, results.caught_up)
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
        wait = Wait(tracker, awake.now(), limit, self._coordinator().wait_after_min_s, min_num)
        while (over := wait.over(awake.now())) is None:
            await self._batches.change(wait.pause(awake.now()), [batch])
        if over is WaitOutcome.TIMEOUT:
            log.error("batch %s: %d tasks have no result after %g s", batch_id, tracker.unfinished, limit)
        if over is not WaitOutcome.COMPLETE and clear:
            await self._batches.close(batch, CLEANUP, partial=partial, restart=over is WaitOutcome.TIMEOUT)
        return await self._batches.take_completed(batch, payloads=payloads)

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
