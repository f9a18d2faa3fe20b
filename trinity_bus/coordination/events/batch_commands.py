"""What clients ask for, carried out or refused.

=================  ===================================================================================================
command            answer
=================  ===================================================================================================
``SubmitBatch``    ok, and the batch is PENDING, or RUNNING if it is open; ``already_active`` where a batch of this id
                   has not ended; ``batch_closed`` where one has: ids are never used again, because the records of the
                   second would stand in for those of the first; ``batch_too_large``; ``invalid`` where there are too
                   many open batches that all have work
``FinalizeBatch``  ``unknown_batch``, ``wrong_type`` or ``open_batch`` at once, and nothing is touched; else, when the
                   batch has ended, its result. Out of time: an eval batch ends with what it has, be it nothing; a
                   train batch with a ``min_wait_num`` likewise if at least one task is finished; else, and where the
                   batch waits its turn in training or is another's, ``timeout``, and the batch goes on
``AbortBatch``     ok, also where the batch has ended or was never known; ``not_yours`` where it is another's, unless an
                   operator asks
``CancelTasks``    the same; its unfinished tasks have results now
``SkipBatch``      ok, and the trainer is told on ``batches`` to pass over it; ``unknown_batch``; ``not_finalized``
                   where it goes on, or was aborted; ``wrong_type`` where it is never trained on;
                   ``already_trained``, as far as published versions tell; ``batch_closed`` where it ended so long ago
                   that it is forgotten. Only operators can ask for it
=================  ===================================================================================================

A batch is owned by the producer that submitted it, or sent its first task: by the name that it gives itself,
``producer`` or else ``client``, because brokers tell no reader who wrote a record. A batch whose first task names a
batch and no producer is anybody's; one that is filled with tasks that name neither, only operators end.
"""

from typing import Final, assert_never

from schemas import AbortBatch, BatchSkipped, CancelTasks, FinalizeBatch, SkipBatch, SubmitBatch
from schemas import BatchLifecycleState as State
from schemas.command import CommandError
from schemas.topics import BATCHES
from trinity_bus.coordination.batches.batch import EVERYBODY, NOBODY, Batch
from trinity_bus.coordination.effects import Write
from trinity_bus.coordination.events.endings import Endings
from trinity_bus.coordination.inputs import BatchRequest
from trinity_bus.coordination.limits import MAX_BATCH_WAITERS, MAX_OPEN_BATCHES
from trinity_bus.coordination.machine_state import BatchWaiter, Handler, MachineState, reply

type Answer = tuple[CommandError | None, str]

_OK: Final[Answer] = (None, "")


class BatchCommands(Handler):
    def __init__(self, state: MachineState, endings: Endings) -> None:
        super().__init__(state)
        self._endings = endings
        self._hasty = False  # whether somebody came who does not want to wait at all

    def handle(self, command: BatchRequest, traceparent: str | None, *, operator: bool = False) -> None:
        match command:
            case SubmitBatch():
                self._answer(command, traceparent, self._submit(command))
            case FinalizeBatch():
                answer = self._finalize(command, traceparent)
                if answer is not None:
                    self._answer(command, traceparent, answer)
            case AbortBatch() | CancelTasks():
                self._answer(command, traceparent, self._end(command, operator=operator))
            case SkipBatch():
                self._answer(command, traceparent, self._skip(command))
            case _:
                assert_never(command)

    def _end(self, command: AbortBatch | CancelTasks, *, operator: bool) -> Answer:
        # For its owner or an operator.
        batch = self._ledger.batches.get(command.batch_id)
        if batch is not None and not (operator or owns(command, batch)):
            whose = "has tasks of anybody" if batch.owner == EVERYBODY else f"is of {batch.owner!r}"
            return "not_yours", f"Batch {batch.batch_id} {whose}, not of {asker(command)!r}; an operator can end it."
        if batch is not None and isinstance(command, AbortBatch):
            self._endings.abort_batch(batch, command.reason, keep_partial=command.keep_partial_results)
        elif batch is not None and isinstance(command, CancelTasks):
            self._endings.end_unfinished_tasks(
                batch,
                command.reason,
                keep_partial=command.return_partial_tasks,
                restart_runners=command.restart_runners,
            )
        return _OK

    def expire(self, *, time_passed: bool) -> bool:
        """Deal with waiters whose time is up. Return whether there were any, so that more batches may have ended.

        To be called when all that has ended is off the books.
        """
        if not time_passed and not self._hasty:
            return False
        self._hasty = False
        overdue = [waiter for waiter in self._waiters if waiter.deadline <= self._clock.now]
        for waiter in overdue:
            self._expired(waiter)
        return bool(overdue)

    # -- submit ------------------------------------------------------------------------------------------------------

    def _submit(self, command: SubmitBatch) -> Answer:
        refused = self._refusal(command)
        if refused is not None:
            return refused
        batch = self._ledger.register(command)
        self._out.publish_batch(batch.record())
        if batch.is_open:
            batch.move(State.RUNNING)
            self._out.publish_batch(batch.record())
        self._endings.abort_unfilled_batches()
        return _OK

    def _refusal(self, command: SubmitBatch) -> Answer | None:
        batch_id, expected = command.batch_id, command.expected_task_count
        if batch_id in self._ledger.batches:
            return "already_active", f"Batch {batch_id} is already active."
        if batch_id in self._ledger.closed:
            return "batch_closed", f"Batch {batch_id} has ended; ids are not used again, name another one."
        most = self._settings.max_batch_tasks
        if expected is not None and expected > most:
            return "batch_too_large", f"A batch has {most} tasks at most, not {expected}."
        if expected is None and not self._room_for_open_batch():
            return "invalid", f"{MAX_OPEN_BATCHES} open batches have work; abort those that are no longer needed."
        return None

    def _room_for_open_batch(self) -> bool:
        # The oldest that is idle makes room if need be.
        opened = [batch for batch in self._ledger.batches.values() if batch.is_open]
        if len(opened) < MAX_OPEN_BATCHES:
            return True
        idle = next((batch for batch in opened if not batch.open_tasks), None)
        if idle is not None:
            self._endings.abort_batch(idle, f"it was idle, and there are {MAX_OPEN_BATCHES} open batches")
        return idle is not None

    # -- finalize ----------------------------------------------------------------------------------------------------

    def _finalize(self, command: FinalizeBatch, traceparent: str | None) -> Answer | None:
        # None where the client waits, or has the batch's result
        batch_id = command.batch_id
        batch = self._ledger.batches.get(batch_id)
        if batch is None:
            return self._finalize_ended(command, traceparent)
        if batch.batch_type != command.batch_type:
            return _wrong_type(command, batch.batch_type)
        if batch.is_open:
            detail = f"Batch {batch_id} is open: it has no number of tasks; its results are on the topic results."
            return "open_batch", detail
        waiting = self._waiters.of(batch_id)
        if len(waiting) >= MAX_BATCH_WAITERS:
            return "invalid", f"{MAX_BATCH_WAITERS} clients wait for batch {batch_id}."
        if batch.expected == 0 and owns(command, batch):
            self._endings.end_batch(batch)
        timeout_s = command.timeout_s
        if timeout_s is None:
            timeout_s = self._settings.task_timeout_s * self._settings.max_attempts
        waiter = BatchWaiter(command, traceparent, timeout_s)
        if waiter.key not in waiting:
            waiter.wait_from(self._clock.now)
            waiting.add(waiter)
        self._hasty = self._hasty or timeout_s <= 0
        return None

    def _finalize_ended(self, command: FinalizeBatch, traceparent: str | None) -> Answer | None:
        result = self._outcomes.get(command.batch_id)
        if result is None:
            return self._no_outcome(command.batch_id)
        if result.batch_type != command.batch_type:
            return _wrong_type(command, result.batch_type)
        self._out.add(reply(command, traceparent, result=result))
        return None

    def _no_outcome(self, batch_id: str) -> Answer:
        if batch_id in self._ledger.closed:
            return "batch_closed", f"Batch {batch_id} ended too long ago; its record on the topic batches tells how."
        return "unknown_batch", f"Batch {batch_id} is not registered."

    # -- skip --------------------------------------------------------------------------------------------------------

    def _skip(self, command: SkipBatch) -> Answer:
        batch_id, result = command.batch_id, self._outcomes.get(command.batch_id)
        if batch_id in self._ledger.batches:
            return "not_finalized", f"Batch {batch_id} has not ended; abort it, and nothing of it is trained on."
        if result is None:
            return self._no_outcome(batch_id)
        if result.state is not State.FINALIZED:
            return "not_finalized", f"Batch {batch_id} is {result.state.value}: nothing of it is ever trained on."
        if result.batch_type != "train" or result.sequence == 0:
            return "wrong_type", f"Batch {batch_id} has no place in the order of training."
        if (trained := self._sync.trained) >= result.sequence:
            detail = f"Batch {batch_id} is number {result.sequence}, and version {trained} was trained on it."
            return "already_trained", detail
        skipped = BatchSkipped(
            batch_id=batch_id, sequence=result.sequence, reason=command.reason, client=command.client
        )
        # Beside the batch's own record, which compaction must not take: no identifier has a blank.
        self._out.add(Write(BATCHES, f"skip {batch_id}", skipped))
        return _OK

    def _expired(self, waiter: BatchWaiter) -> None:
        batch = self._ledger.batches[waiter.command.batch_id]
        has_some = batch.batch_type == "eval" or (batch.min_wait_num is not None and batch.finished > 0)
        if has_some and owns(waiter.command, batch):
            self._endings.end_batch(batch)
        if batch.state is State.FINALIZING and self._ledger.admission.is_next(batch):
            return  # It is finalized in a moment, and everybody is answered who waits for it.
        del self._waiters.of(batch.batch_id)[waiter.key]
        self._answer(waiter.command, waiter.traceparent, ("timeout", f"Timeout waiting for batch {batch.batch_id}."))

    def _answer(self, command: BatchRequest, traceparent: str | None, answer: Answer) -> None:
        self._out.add(self._replies.give(command, *answer, traceparent))


def _wrong_type(command: FinalizeBatch, found: str) -> Answer:
    return "wrong_type", f"Batch {command.batch_id} is {found}, expected {command.batch_type}."


def asker(command: BatchRequest) -> str:
    return command.producer or command.client


def owns(command: BatchRequest, batch: Batch) -> bool:
    return batch.owner in (NOBODY, asker(command))
