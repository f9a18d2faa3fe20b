"""Handing parts of tasks out and taking them back: what the books, the fleet and the outbox must agree on.

A running attempt is in four places: in its part, in the ledger's ``running``, in the ``assigned`` of its explorer, and
in the share of the producer whose batch it is of. All changes to them are made here.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Final

from schemas import Cancel, Dispatch
from schemas.topics import ROLLOUTS
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.ledger import Ledger
from trinity_bus.coordination.batches.parts import Attempt, Part
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.fleet import Fleet
from trinity_bus.coordination.dispatch.placement import Placement
from trinity_bus.coordination.effects import Effects, Write
from trinity_bus.coordination.limits import short_error

MOST_STARTED: Final = 256  # of one pass, so that a thousand free explorers do not delay all other work

# Finds the free slots for a version, in one pass.
type _Finder = Callable[[int], Placement]


class Dispatcher:
    def __init__(self, settings: CoordinatorSettings, ledger: Ledger, fleet: Fleet, out: Effects) -> None:
        self._settings = settings
        self._ledger = ledger
        self._fleet = fleet
        self._out = out
        self.is_cut_short = False  # whether the last pass ended at MOST_STARTED, with more to dispatch
        self._started = 0

    def timeout_s(self, own_s: float | None = None) -> float:
        """Return how long an attempt which starts now may take: the task's own limit, or one that follows from others.

        With ``dynamic_timeout_ratio`` set, an attempt that starts after ``dynamic_timeout_warmup_steps`` train batches
        were finalized, or drained by a ``Scheduler``, may take ``ratio`` times what attempts at train tasks took on
        average, from dispatch to result. All of them count that ended by an answer, a failure or running out of time;
        not those that were cancelled or whose explorer died, nor those across a restart of the coordinator.
        """
        settings, counters = self._settings, self._ledger.counters
        own_s = own_s or settings.task_timeout_s
        steps = counters.finalized + counters.drained
        warm = steps >= settings.dynamic_timeout_warmup_steps and counters.timed_attempts > 0
        if settings.dynamic_timeout_ratio is None or not warm:
            return own_s
        mean = counters.attempt_seconds / counters.timed_attempts
        # A limit is above 0 even if everything so far took no time at all.
        return min(own_s, max(mean * settings.dynamic_timeout_ratio, settings.tick_s))

    def timed(self, attempt: Attempt, now: float) -> float | None:
        """Count how long an attempt took that ends now, and return it; None if that is not known."""
        if attempt.started is None:
            return None
        seconds = now - attempt.started
        if self._ledger.tasks[attempt.task_id].task.batch_type == "train":
            self._ledger.counters.timed_attempts += 1
            self._ledger.counters.attempt_seconds += seconds
        return seconds

    def dispatch(self, newest_version: int, now: float, ceiling: int | None = None) -> None:
        """Dispatch parts until no slot is free, no part fits, or enough attempts are started; producers take turns.

        ``newest_version`` is the announced one. Parts that need a newer version than ``ceiling`` are not dispatched.
        """
        self.is_cut_short, self._started = False, 0
        queue, shares = self._ledger.queue, self._ledger.shares
        shares.forget_idle(queue.producers)
        if not queue:
            return
        free_slots = self._fleet.free_slots
        if not free_slots:
            return
        find = cache(partial(free_slots.of, trained=newest_version >= 0))
        # A part that does not fit now will not fit later in this pass, because free slots only decrease.
        turns = [(shares.rank(producer), queue.of(producer)) for producer in queue.producers]
        heapq.heapify(turns)
        while len(turns) > 1 and free_slots and not self.is_cut_short:
            (*_, producer), batches = turns[0]
            if self._dispatch_turn(batches, find, newest_version, now, ceiling, alone=False):
                shares.served(producer)
                heapq.heapreplace(turns, (shares.rank(producer), batches))
            else:
                heapq.heappop(turns)
        if free_slots and not self.is_cut_short:
            self._dispatch_turn(turns[0][1], find, newest_version, now, ceiling, alone=True)

    def _dispatch_turn(
        self, batches: deque[Batch], find: _Finder, newest_version: int, now: float, ceiling: int | None, *, alone: bool
    ) -> bool:
        # Dispatches one part, or for a single producer all that fit. Returns whether more may fit.
        while batches:
            batch = batches[0]
            min_version = _min_version(batch, newest_version)
            if ceiling is None or min_version <= ceiling:
                placement = find(min_version)
                while (queued := batch.next_queued(placement.kinds)) is not None:
                    *_, index, task_id = queued
                    task = self._ledger.tasks[task_id]
                    part = task.parts[index]
                    explorer = placement.place(task, part)
                    self._ledger.queue.take(batch, task.kind)
                    self._start(batch, task, part, explorer, placement.version_for(explorer), now=now)
                    self.is_cut_short = self._started >= MOST_STARTED
                    if self.is_cut_short or not (alone and self._fleet.free_slots):
                        return True
            batches.popleft()
        return False

    def speculate(self, attempt: Attempt, newest_version: int, now: float) -> bool:
        """Start a second attempt beside a slow one, on another explorer. Return whether there was room."""
        task = self._ledger.tasks[attempt.task_id]
        batch = self._ledger.batches[task.batch_id]
        min_version = _min_version(batch, newest_version)
        placement = self._fleet.free_slots.of(min_version, trained=newest_version >= 0)
        part = task.parts[attempt.part]
        explorer = placement.find(task, part, beside=attempt.explorer)
        if explorer is None:
            return False
        self._start(batch, task, part, explorer, placement.version_for(explorer), now=now)
        return True

    def stop(self, attempt: Attempt) -> tuple[OpenTask, Part]:
        del self._ledger.running[attempt.key]
        self._fleet.release(attempt.explorer, attempt.key)
        task = self._ledger.tasks[attempt.task_id]
        self._ledger.shares.release(self._ledger.batches[task.batch_id].owner)
        return task, task.stop(attempt)

    def cancel(self, attempts: Collection[Attempt], reason: str, *, restart_runner: bool = False) -> None:
        """Note that the attempts are over, and tell their explorers, who may still run them."""
        for attempt in list(attempts):
            task, _ = self.stop(attempt)
            self.recall(attempt, task, reason, restart_runner=restart_runner)

    def recall(self, attempt: Attempt, task: OpenTask, reason: str, *, restart_runner: bool = False) -> None:
        order = Cancel(
            explorer=attempt.explorer,
            incarnation=attempt.incarnation,
            task_id=attempt.task_id,
            attempt=attempt.number,
            reason=short_error(reason),
            restart_runner=restart_runner,
        )
        lane = self._fleet.lane_of(attempt.explorer, attempt.incarnation)
        self._out.add(Write(ROLLOUTS, attempt.explorer, order, task.traceparent, lane))

    def _start(
        self, batch: Batch, task: OpenTask, part: Part, explorer: Explorer, min_version: int, *, now: float
    ) -> None:
        self._started += 1
        timeout_s = self.timeout_s(task.task.timeout_s)
        attempt = task.start(part, explorer.name, explorer.incarnation, timeout_s, now)
        self._ledger.run(attempt, batch.owner)
        self._fleet.assign(explorer, attempt)
        dispatch = Dispatch(
            explorer=explorer.name,
            incarnation=explorer.incarnation,
            task=task.task,
            attempt=attempt.number,
            batch_id=batch.batch_id,
            batch_type=batch.batch_type,
            repeat_times=part.runs,
            run_id_base=part.run_id_base,
            min_version=min_version,
            timeout_s=timeout_s,
            turns=task.left.turns,
            discarded=task.left.discarded,
        )
        self._out.add(Write(ROLLOUTS, explorer.name, dispatch, task.traceparent, explorer.lane))


def _min_version(batch: Batch, newest_version: int) -> int:
    # Those of open batches get the newest weights.
    return max(0, newest_version) if batch.is_open else batch.min_version


def slow_attempts(settings: CoordinatorSettings, ledger: Ledger, now: float) -> list[Attempt]:
    """Return attempts that deserve a second one beside them, the oldest first; none unless ``straggler_factor`` is set.

    When nothing of a batch is left to dispatch and at least half of its tasks are finished, these are attempts that
    take more than ``straggler_factor`` times the median of the batch's answered parts.
    """
    factor = settings.straggler_factor
    if factor is None:
        return []
    slow = []
    for batch in ledger.batches.values():
        if batch.expected is None or batch.queued or not batch.durations or 2 * batch.finished < batch.expected:
            continue
        limit = factor * batch.durations[len(batch.durations) // 2]
        for task in batch.open_tasks.values():
            for part in task.parts:
                if len(part.running) != 1 or part.tries >= settings.max_attempts:
                    continue
                attempt = part.running[0]
                if attempt.started is not None and now - attempt.started > limit:
                    slow.append((attempt.started, task.order, attempt.number, attempt))
    return [attempt for *_, attempt in sorted(slow, key=lambda found: found[:3])]
