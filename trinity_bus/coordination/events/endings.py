"""How attempts, tasks and batches end, and which records report it.

======================================  ================================================================================
event                                   effect
======================================  ================================================================================
an attempt succeeds                     its part is answered, another attempt at the part is cancelled; the task ends
                                        with its last part
an attempt fails with some runs done    these runs are kept, and the others are retried as separate parts
an attempt fails or times out, or its   the part is retried while attempts are left and no other attempt at it runs;
explorer is lost                        else the task fails, or continues for its other parts (partial results)
an explorer drains and does not work    the part is dispatched again, and this does not count as an attempt: a fleet
on the attempt                          that shrinks or is upgraded fails no task that takes longer than drains last
enough tasks of a batch are finished    ``wait_after_min_s`` later the others are ended
a client ends tasks or a batch          attempts at unfinished tasks are cancelled, and each task gets a result,
                                        ``partial`` or ``aborted``
======================================  ================================================================================
"""

from collections.abc import Container, Sequence

from schemas import BatchLifecycleState as State
from schemas import RolloutFinished
from schemas.command import BatchResult
from schemas.topics import RESULTS
from trinity_bus.coordination.batches import results
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.dispatch_queue import batch_priority
from trinity_bus.coordination.batches.parts import Attempt, AttemptKey, Part, stretches
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.dispatch.dispatcher import Dispatcher
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.effects import Fact, Write
from trinity_bus.coordination.limits import records_left, short_error
from trinity_bus.coordination.machine_state import Handler, MachineState, reply

_FACTS = {"failed": Fact.TASK_FAILED, "aborted": Fact.TASK_ABORTED}


class Endings(Handler):
    def __init__(self, state: MachineState, dispatcher: Dispatcher) -> None:
        super().__init__(state)
        self._dispatcher = dispatcher

    # -- attempts ----------------------------------------------------------------------------------------------------

    def finished(self, event: RolloutFinished, traceparent: str | None) -> None:
        """End the attempt that an explorer has ended: with an answer for all of its part, for some of it, or none."""
        attempt = self._ledger.running.get((event.task_id, event.attempt))
        if attempt is None or (attempt.explorer, attempt.incarnation) != (event.explorer, event.incarnation):
            detail = f"attempt {event.attempt} of {event.explorer} does not count"
            self._out.observe(Fact.LATE_RESULT, event.task_id, detail)
            return
        task = self._ledger.tasks[event.task_id]
        batch = self._ledger.batches[task.batch_id]
        done = self._runs_to_keep(event, batch, task, task.parts[attempt.part])
        problem = results.problem(
            event,
            batch.batch_type,
            -1 if self._fleet.is_fixed(attempt.explorer) else batch.min_version,
            accept_partial=self._settings.return_partial_tasks or bool(done),
            max_pieces=max(1, self._records_left(batch, task) // task.parts_left) if event.pieces else 0,
        )
        if problem is not None:
            self.attempt_failed(attempt, problem, Fact.ATTEMPT_FAILED, took_s=event.seconds)
        else:
            self._attempt_answered(attempt, event, done, traceparent)

    def _runs_to_keep(self, event: RolloutFinished, batch: Batch, task: OpenTask, part: Part) -> list[int]:
        # The runs of an attempt that are kept while its others are tried again. Not beside another attempt at the part,
        # which does all of its runs, nor where the answers would be in more records than a task of its batch may have.
        if event.status != "partial" or self._settings.return_partial_tasks:
            return []
        done = results.runs_done(event, part)
        missing = set(range(part.run_id_base, part.run_id_base + part.runs)).difference(done)
        records = max(1, len(event.pieces)) + task.parts_left - 1 + len(stretches(sorted(missing)))
        return done if records <= self._records_left(batch, task) and len(part.running) == 1 else []

    def _records_left(self, batch: Batch, task: OpenTask) -> int:
        return records_left(batch.expected, self._settings.max_batch_parts, task.records)

    def _attempt_answered(
        self, attempt: Attempt, event: RolloutFinished, done: Sequence[int], traceparent: str | None
    ) -> None:
        # It answers its part, or, as the only one at it, for the runs ``done``: the others are retried.
        elapsed = self._dispatcher.timed(attempt, self._clock.now)
        task, part = self._dispatcher.stop(attempt)
        batch_type = self._ledger.batches[task.batch_id].batch_type
        error = ""
        if event.status != "completed":
            error = short_error(event.error or f"{event.completed_runs} of {event.total_runs} runs completed")
        rest: list[Part] = []
        if done:
            detail = f"attempt {attempt.number} on {attempt.explorer}: {error}"
            detail = f"{detail}; {len(done)} of {part.runs} runs are kept"
            self._out.observe(Fact.ATTEMPT_FAILED, attempt.task_id, detail)
            task.left.first_error = task.left.first_error or error
            rest = task.cut(part, done, attempt.explorer)
        whole = bool(done) or event.status == "completed"
        trace = traceparent or task.traceparent
        answer = results.answer(event, part, batch_type, elapsed, trace, error=None if whole else error)
        task.answer(part, answer)
        self._ledger.note_length(task, event.response_tokens, event.completed_runs)
        self._dispatcher.cancel(part.running, f"attempt {attempt.number} was faster")
        if not task.parts_left:
            self._finish(task, results.joined(task, batch_type))
            return
        self._ledger.answered(task, part.index, answer, *rest)
        if rest:
            self._retry(task, rest, error)

    def attempt_failed(
        self, attempt: Attempt, error: str, fact: Fact, *, took_s: float = 0.0, cancel: bool = False, timed: bool = True
    ) -> None:
        """End a running attempt without an answer: retry its part, or fail it.

        ``took_s``: its duration, if known. ``cancel``: whether its explorer may still be running it. ``timed``: whether
        its duration counts for dynamic timeouts.
        """
        if timed:
            self._dispatcher.timed(attempt, self._clock.now)
        error = short_error(error)
        task, part = self._dispatcher.stop(attempt)
        task.left.lost_s += took_s
        if cancel:
            self._dispatcher.recall(attempt, task, error)
        self._out.observe(fact, attempt.task_id, f"attempt {attempt.number} on {attempt.explorer}: {error}")
        part.lost += 1
        part.failed_on = attempt.explorer
        task.left.first_error = task.left.first_error or error
        self._ledger.progressed(task, part)
        if not part.running:
            self._retry(task, [part], error)

    def _retry(self, task: OpenTask, parts: Sequence[Part], error: str) -> None:
        # Parts without a running attempt, which have all lost the same number of attempts.
        batch = self._ledger.batches[task.batch_id]
        if parts[0].lost < self._settings.max_attempts:
            detail = f"{parts[0].lost} of {self._settings.max_attempts} tries"
            self._out.observe(Fact.TASK_RETRIED, task.task_id, detail)
            for part in parts:
                self._ledger.queue.enqueue(batch, task, part)
            return
        for part in parts:
            task.fail(part)
        self._ledger.progressed(task, *parts)
        if not (self._settings.return_partial_tasks or batch.is_open):
            self.fail_task(task, error)
        elif not task.parts_left:
            if task.answers:
                self._finish(task, results.joined(task, batch.batch_type))
            else:
                self.fail_task(task, error)

    def explorer_lost(self, explorer: Explorer, reason: str, *, cancel: bool) -> None:
        """Retry or fail the attempts of an explorer's incarnation that has ended. Call it while it is in the fleet."""
        lost = [self._ledger.running[key] for key in explorer.assigned]
        for attempt in self._ledger.in_order(lost):
            if attempt.key in explorer.assigned:
                self.attempt_failed(attempt, reason, Fact.ATTEMPT_FAILED, cancel=cancel, timed=False)

    def requeue_from(self, explorer: Explorer, kept: Container[AttemptKey]) -> None:
        """Queue the attempts that a draining explorer does not run, all but ``kept``; none counts as failed."""
        returned = [attempt for key, attempt in explorer.assigned.items() if key not in kept]
        for attempt in self._ledger.in_order(returned):
            self._requeue(*self._dispatcher.stop(attempt))

    def requeue_running(self, reason: str) -> None:
        """Stop and queue all attempts at tasks of the trained model; this does not count as a failed attempt."""
        # Also those with fixed weights: they may go on from what was drawn by a discarded version.
        running = [a for a in self._ledger.running.values() if not self._fleet.serves_another_model(a.explorer)]
        for attempt in self._ledger.in_order(running):
            task, part = self._dispatcher.stop(attempt)
            self._dispatcher.recall(attempt, task, reason)
            self._requeue(task, part)
        # Turns of a discarded version are not continued, nor those of tasks that wait. What runs on is of other models.
        for task in self._ledger.tasks.values():
            if task.attempts > task.left.discarded and not task.running:
                task.left.turns, task.left.discarded = None, task.attempts
                self._ledger.progressed(task)

    def _requeue(self, task: OpenTask, part: Part) -> None:
        self._ledger.progressed(task)
        if not part.running:
            self._ledger.queue.enqueue(self._ledger.batches[task.batch_id], task, part)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def fail_task(self, task: OpenTask, error: str) -> None:
        first = task.left.first_error or short_error(error)
        self._stop_all(task, f"another part of the task has failed: {first}")
        self._finish(task, results.failure(task, first))

    def finish_answered_task(self, task: OpenTask) -> None:
        self._finish(task, results.joined(task, task.task.batch_type))

    def end_unfinished_tasks(
        self, batch: Batch, reason: str, *, keep_partial: bool, restart_runners: bool = False
    ) -> None:
        self._ledger.queue.clear(batch)
        for task in list(batch.open_tasks.values()):
            self._stop_all(task, reason, restart_runners=restart_runners)
            # A contribution to a batch without a place in training was never checked for staleness.
            keep = keep_partial and task.parts_left > 0
            self._finish(task, results.unfinished(task, batch.batch_type, reason, keep_partial=keep))

    # -- batches -----------------------------------------------------------------------------------------------------

    def end_overdue_batches(self) -> None:
        for batch in list(self._ledger.handed_out.values()):
            if batch.cut_at is not None and batch.cut_at <= self._clock.now:
                self.end_batch(batch)

    def end_batch(self, batch: Batch) -> None:
        """End a batch with the results that it has, so that only the order of training delays it."""
        if batch.state not in (State.PENDING, State.RUNNING):
            return
        expected = "any number" if batch.expected is None else str(batch.expected)
        reason = f"batch {batch.batch_id} ended with {batch.finished} of {expected} tasks finished"
        if batch.state is State.PENDING:
            self._complete(batch)
        self.end_unfinished_tasks(batch, reason, keep_partial=self._settings.return_partial_tasks)

    def abort_batch(self, batch: Batch, reason: str, *, keep_partial: bool = False) -> None:
        batch.move(State.ABORTED)
        self.end_unfinished_tasks(batch, reason, keep_partial=keep_partial)
        self._ledger.aborted(batch)
        self._publish_end(batch, reason, with_results=keep_partial)

    def abort_unfilled_batches(self) -> None:
        while (batch := self._ledger.admission.overflow()) is not None:
            self.abort_batch(
                batch,
                f"it got no task for longer than other unfilled batches ({batch.accepted} of {batch.expected} came), "
                "and these hold too many tasks or bytes; send the tasks of a batch together",
            )

    def finalize_batches(self) -> bool:
        """Finalize complete batches that are next in the order of training. Return whether there were any."""
        ended = False
        for batch in sorted(self._ledger.complete.values(), key=batch_priority):
            if self._ledger.admission.is_next(batch):
                self._ledger.finalized(batch)
                self._publish_end(batch, None, with_results=True)
                ended = True
        return ended

    def restart_waits(self) -> None:
        for batch in self._ledger.handed_out.values():
            self._wait_if_enough(batch)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _stop_all(self, task: OpenTask, reason: str, *, restart_runners: bool = False) -> None:
        self._dispatcher.cancel(task.running, reason, restart_runner=restart_runners)
        if any(part.queued for part in task.parts):
            self._ledger.queue.drop(self._ledger.batches[task.batch_id], task)

    def _finish(self, task: OpenTask, result: Result) -> None:
        batch = self._ledger.finish_task(task, result)
        record = results.record(task, batch.batch_type, result)
        self._out.add(Write(RESULTS, record.task_id, record, result.traceparent or task.traceparent))
        if (fact := _FACTS.get(record.status)) is not None:
            self._out.observe(fact, record.task_id, record.error or "")
        if batch.state is State.RUNNING:
            if batch.all_ended:
                self._complete(batch)
            else:
                self._wait_if_enough(batch)

    def _complete(self, batch: Batch) -> None:
        self._out.publish_batch(self._ledger.completed(batch))

    def _wait_if_enough(self, batch: Batch) -> None:
        if batch.cut_at is None and batch.has_enough:
            batch.cut_at = self._clock.now + self._settings.wait_after_min_s

    def _publish_end(self, batch: Batch, reason: str | None, *, with_results: bool) -> None:
        record = batch.record(
            reason=reason, with_results=with_results, detailed_stats=self._settings.detailed_eval_stats
        )
        self._out.publish_batch(record)
        result = BatchResult(
            batch_id=batch.batch_id,
            batch_type=batch.batch_type,
            state=batch.state,
            finished_task_count=batch.finished,
            metrics=record.metrics,
            sequence=record.sequence,
        )
        self._outcomes.add(result.batch_id, result)
        for waiter in self._waiters.take(batch.batch_id):
            self._out.add(reply(waiter.command, waiter.traceparent, result=result))
