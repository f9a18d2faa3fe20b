"""How attempts, tasks and batches end, and who is told.

::

    attempt --answered, failed, cancelled--> part --> task: one Result, one Answered
                                                        |
                                              the last of its batch, or the batch is cut off
                                                        |
                                                      batch: FINALIZED or ABORTED --> outcome, replies

======================================  ================================================================================
what happens                            what follows
======================================  ================================================================================
an attempt is good                      its part is answered, another attempt at the part is cancelled; the task ends
                                        with its last part
an attempt breaks off, some runs done   these are kept, and the others are tried again, as parts of their own
an attempt fails, is out of time, or    the part is tried again while tries are left and nobody else is at it; else the
its explorer is gone                    task fails, or goes on for the runs of its other parts (partial results)
its explorer leaves in order, and does  the part is handed out again, and no try is lost: a fleet that shrinks, or is
not have it, or gives it back           upgraded one by one, ends no task that takes longer than explorers wait
enough tasks of a batch are finished    ``wait_after_min_s`` later the others are cut off
a client ends tasks or a batch          the unfinished ones are cut off: their attempts are cancelled, and each has a
                                        result, ``partial`` or ``aborted``
======================================  ================================================================================
"""

from collections.abc import Container, Sequence

from schemas import BatchLifecycleState as State
from schemas import RolloutFinished
from schemas.command import BatchResult
from trinity_bus.coordination.batches import results
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.dispatch_queue import batch_priority
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey, Part
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.dispatch.attempt_timeouts import AttemptTimeouts
from trinity_bus.coordination.dispatch.dispatcher import Dispatcher
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.effects import Fact, PublishBatch, PublishResult
from trinity_bus.coordination.limits import short_error
from trinity_bus.coordination.machine_state import MachineContext, MachineState

_FACTS = {"failed": Fact.TASK_FAILED, "aborted": Fact.TASK_ABORTED}


class Endings:
    """Ends attempts, tasks and batches.

    Args:
        context: What the machine is run with.
        state: Its state.
        dispatcher: To stop and cancel.
        timeouts: Told how long attempts took.
    """

    def __init__(
        self, context: MachineContext, state: MachineState, dispatcher: Dispatcher, timeouts: AttemptTimeouts
    ) -> None:
        self._settings = context.settings
        self._clock = context.clock
        self._out = context.out
        self._ledger = state.ledger
        self._fleet = state.fleet
        self._waiters = state.waiters
        self._outcomes = state.outcomes
        self._dispatcher = dispatcher
        self._timeouts = timeouts
        self._to_cut: dict[str, Batch] = {}

    # -- attempts ----------------------------------------------------------------------------------------------------

    def answered(self, attempt: Attempt, event: RolloutFinished, traceparent: str | None) -> None:
        """Note that the running attempt is good."""
        elapsed = self._timed(attempt)
        task, part = self._dispatcher.stop(attempt)
        batch_type = self._ledger.batches[task.batch_id].batch_type
        whole = event.status == "completed"
        answer = results.answer(event, part, batch_type, elapsed, traceparent or task.traceparent, whole=whole)
        task.answer(part, answer)
        self._dispatcher.cancel(part.running, f"attempt {attempt.number} was faster")
        if task.parts_left:
            self._ledger.answered(task, part.index, answer)
        else:
            self._settle(task, results.joined(task, batch_type))

    def kept(self, attempt: Attempt, event: RolloutFinished, done: Sequence[int], traceparent: str | None) -> None:
        """Note that the running attempt has broken off: its runs that are done are good, the others are tried again.

        Args:
            attempt: The only one at its part.
            event: What its explorer says.
            done: Runs of its part, not all of them.
            traceparent: Of the rollout.
        """
        elapsed = self._timed(attempt)
        task, part = self._dispatcher.stop(attempt)
        batch = self._ledger.batches[task.batch_id]
        error = short_error(event.error or f"{event.completed_runs} of {event.total_runs} runs completed")
        detail = f"attempt {attempt.number} on {attempt.explorer}: {error}; {len(done)} of {part.runs} runs are kept"
        self._out.observe(Fact.ATTEMPT_FAILED, attempt.task_id, detail)
        task.first_error = task.first_error or error
        rest = task.cut(part, done, attempt.explorer)
        trace = traceparent or task.traceparent
        answer = results.answer(event, part, batch.batch_type, elapsed, trace, whole=True)
        task.answer(part, answer)
        self._ledger.answered(task, part.index, answer, *rest)
        self._try_again(task, rest, error)

    def failed(
        self,
        attempt: Attempt,
        error: str,
        fact: Fact,
        *,
        took_s: float = 0.0,
        cancel: bool = False,
        timed: bool = True,
    ) -> None:
        """Note that the running attempt ended without an answer: its part is tried again, or fails.

        Args:
            attempt: That has ended.
            error: What went wrong.
            fact: What to count it as.
            took_s: Seconds that it took, as far as that is known.
            cancel: Whether its explorer may still be at it.
            timed: Whether it tells something about how long attempts take.
        """
        if timed:
            self._timed(attempt)
        error = short_error(error)
        task, part = self._dispatcher.stop(attempt)
        task.lost_s += took_s
        if cancel:
            self._dispatcher.recall(attempt, task, error)
        self._out.observe(fact, attempt.task_id, f"attempt {attempt.number} on {attempt.explorer}: {error}")
        part.lost += 1
        part.failed_on = attempt.explorer
        task.first_error = task.first_error or error
        self._ledger.progressed(task, part)
        if not part.running:
            self._try_again(task, [part], error)

    def _try_again(self, task: OpenTask, parts: Sequence[Part], error: str) -> None:
        """Have parts, of which nothing runs and which have lost as many tries, handed out again; or they fail."""
        batch = self._ledger.batches[task.batch_id]
        if parts[0].lost < self._settings.max_attempts:
            detail = f"{parts[0].lost} of {self._settings.max_attempts} tries"
            self._out.observe(Fact.TASK_RETRIED, task.task.task_id, detail)
            for part in parts:
                self._ledger.queue.enqueue(batch, task, part)
            return
        for part in parts:
            task.fail(part)
        self._ledger.progressed(task, *parts)
        if not (self._settings.return_partial_tasks or batch.is_open):
            self.give_up(task, error)
        elif not task.parts_left:
            if task.answers:
                self._settle(task, results.joined(task, batch.batch_type))
            else:
                self.give_up(task, error)

    def lose(self, explorer: Explorer, reason: str, *, cancel: bool) -> None:
        """Note that an incarnation of an explorer is over; what it ran is tried again or fails.

        To be called while it is in the fleet.
        """
        lost = [self._ledger.running[key] for key in explorer.assigned]
        for attempt in sorted(lost, key=lambda a: (self._ledger.tasks[a.task_id].order, a.number)):
            if attempt.key in explorer.assigned:
                self.failed(attempt, reason, Fact.ATTEMPT_FAILED, cancel=cancel, timed=False)

    def give_back(self, explorer: Explorer, kept: Container[AttemptKey]) -> None:
        """Note what an explorer that leaves in order does not work on: it is handed out anew, and no try is lost.

        Args:
            explorer: Takes no more orders.
            kept: What it works on still.
        """
        back = [attempt for key, attempt in explorer.assigned.items() if key not in kept]
        for attempt in sorted(back, key=lambda a: (self._ledger.tasks[a.task_id].order, a.number)):
            task, part = self._dispatcher.stop(attempt)
            self._ledger.progressed(task)
            if not part.running:
                self._ledger.queue.enqueue(self._ledger.batches[task.batch_id], task, part)

    def hand_out_again(self, reason: str) -> None:
        """Stop all that runs with the trainer's weights; it waits to be handed out anew, and no try is lost."""
        drawn = [attempt for attempt in self._ledger.running.values() if not self._fleet.is_fixed(attempt.explorer)]
        for attempt in sorted(drawn, key=lambda a: (self._ledger.tasks[a.task_id].order, a.number)):
            task, part = self._dispatcher.stop(attempt)
            self._dispatcher.recall(attempt, task, reason)
            # What was drawn with a version that is void is not gone on with.
            task.turns = None
            self._ledger.progressed(task)
            if not part.running:
                self._ledger.queue.enqueue(self._ledger.batches[task.batch_id], task, part)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def give_up(self, task: OpenTask, error: str) -> None:
        """Note that the task fails for good, with its first error; nothing of it counts."""
        first = task.first_error or short_error(error)
        self._stop_all(task, f"another part of the task has failed: {first}")
        self._settle(task, results.failure(task, first))

    def settle_answered(self, task: OpenTask) -> None:
        """Note that a task whose parts are all answered waits for nothing any more."""
        self._settle(task, results.joined(task, task.task.batch_type))

    def cut_off(self, batch: Batch, reason: str, *, keep_partial: bool, restart_runners: bool = False) -> None:
        """End all unfinished tasks of a batch."""
        self._ledger.queue.clear(batch)
        for task in list(batch.open_tasks.values()):
            self._stop_all(task, reason, restart_runners=restart_runners)
            # What was contributed to a batch without a place in training was not found fresh enough for one.
            keep = keep_partial and task.parts_left > 0
            self._settle(task, results.cut_off(task, batch.batch_type, reason, keep_partial=keep))

    # -- batches -----------------------------------------------------------------------------------------------------

    def cut_overdue(self) -> None:
        """End batches that have enough, and have waited for the others."""
        for batch in list(self._to_cut.values()):
            if batch.cut_at is not None and batch.cut_at <= self._clock.now:
                self.end_now(batch)

    def end_now(self, batch: Batch) -> None:
        """End a batch with the results that it has: it then waits for nothing but its turn."""
        if batch.state not in (State.PENDING, State.RUNNING):
            return
        expected = "any number" if batch.expected is None else str(batch.expected)
        reason = f"batch {batch.batch_id} ended with {batch.finished} of {expected} tasks finished"
        if batch.state is State.PENDING:
            self._complete(batch)
        self.cut_off(batch, reason, keep_partial=self._settings.return_partial_tasks)

    def abort(self, batch: Batch, reason: str, *, keep_partial: bool = False) -> None:
        """Give the batch up; nothing of it is ever trained on."""
        batch.move(State.ABORTED)
        self.cut_off(batch, reason, keep_partial=keep_partial)
        self._ledger.aborted(batch)
        self._tell_end(batch, reason, with_results=keep_partial)

    def give_up_unfilled(self) -> None:
        """Aborts batches whose tasks do not come, where too much waits for them."""
        while (batch := self._ledger.admission.overflow()) is not None:
            self.abort(
                batch,
                f"it got no task for longer than others that are not full ({batch.accepted} of {batch.expected} came), "
                "and these take too much room; send the tasks of a batch together",
            )

    def finalize(self) -> bool:
        """End complete batches whose turn has come, in the order of their turns. Return whether there were any."""
        ended = False
        for batch in sorted(self._ledger.complete.values(), key=batch_priority):
            if self._ledger.admission.is_next(batch):
                self._ledger.finalized(batch)
                self._tell_end(batch, None, with_results=True)
                ended = True
        return ended

    def restored(self) -> None:
        """Batches that have enough get the whole time again to wait for their other tasks."""
        for batch in self._ledger.batches.values():
            self._look_whether_enough(batch)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _timed(self, attempt: Attempt) -> float | None:
        task = self._ledger.tasks[attempt.task_id]
        return self._timeouts.ended(attempt, task.task.batch_type, self._clock.now)

    def _stop_all(self, task: OpenTask, reason: str, *, restart_runners: bool = False) -> None:
        self._dispatcher.cancel(task.running, reason, restart_runner=restart_runners)
        if any(part.queued for part in task.parts):
            self._ledger.queue.drop(self._ledger.batches[task.batch_id], task)

    def _settle(self, task: OpenTask, result: Result) -> None:
        batch = self._ledger.settle(task, result)
        record = results.told(task, batch.batch_type, result)
        self._out.add(PublishResult(record, result.traceparent or task.traceparent))
        fact = _FACTS.get(result.status, Fact.TASK_COMPLETED)
        self._out.observe(fact, result.task_id, result.status if fact is Fact.TASK_COMPLETED else result.error or "")
        if batch.state is State.RUNNING:
            if batch.all_ended:
                self._complete(batch)
            else:
                self._look_whether_enough(batch)

    def _complete(self, batch: Batch) -> None:
        self._to_cut.pop(batch.batch_id, None)
        self._out.add(PublishBatch(self._ledger.completed(batch)))

    def _look_whether_enough(self, batch: Batch) -> None:
        if batch.state is State.RUNNING and batch.cut_at is None and batch.has_enough:
            batch.cut_at = self._clock.now + self._settings.wait_after_min_s
            self._to_cut[batch.batch_id] = batch

    def _tell_end(self, batch: Batch, reason: str | None, *, with_results: bool) -> None:
        self._to_cut.pop(batch.batch_id, None)
        record = batch.record(
            reason=reason, with_results=with_results, detailed_stats=self._settings.detailed_eval_stats
        )
        self._out.add(PublishBatch(record))
        result = BatchResult(
            batch_id=batch.batch_id,
            batch_type=batch.batch_type,
            state=batch.state,
            finished_task_count=batch.finished,
            metrics=record.metrics,
            sequence=record.sequence,
        )
        self._outcomes.add(result)
        for waiter in self._waiters.take(batch.batch_id):
            self._out.add(waiter.reply(result))
