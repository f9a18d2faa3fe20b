"""Which attempts that have ended count, and for how much of their part."""

from schemas import RolloutFinished
from trinity_bus.coordination.batches import results
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.parts import Part, stretches
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.effects import Fact
from trinity_bus.coordination.events.endings import Endings
from trinity_bus.coordination.limits import records_left
from trinity_bus.coordination.machine_state import Handler, MachineState


class Answers(Handler):
    def __init__(self, state: MachineState, endings: Endings) -> None:
        super().__init__(state)
        self._endings = endings

    def handle(self, event: RolloutFinished, traceparent: str | None) -> None:
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
            max_pieces=self._pieces_allowed(batch, task),
        )
        if problem is not None:
            self._endings.attempt_failed(attempt, problem, Fact.ATTEMPT_FAILED, took_s=event.seconds)
        elif done:
            self._endings.attempt_partly_succeeded(attempt, event, done, traceparent)
        else:
            self._endings.attempt_succeeded(attempt, event, traceparent)

    def _runs_to_keep(self, event: RolloutFinished, batch: Batch, task: OpenTask, part: Part) -> list[int]:
        # The runs of an attempt that are kept while its others are tried again. Not beside another attempt at the part,
        # which does all of its runs, nor where the answers would be in more records than a task of its batch may have.
        if event.status != "partial" or self._settings.return_partial_tasks:
            return []
        done = results.runs_done(event, part)
        missing = set(range(part.run_id_base, part.run_id_base + part.runs)).difference(done)
        records = max(1, len(event.pieces)) + task.parts_left - 1 + len(stretches(sorted(missing)))
        fits = records <= records_left(batch.expected, self._settings.max_batch_parts, task.records)
        return done if fits and len(part.running) == 1 else []

    def _pieces_allowed(self, batch: Batch, task: OpenTask) -> int:
        left = records_left(batch.expected, self._settings.max_batch_parts, task.records)
        return max(1, left // task.parts_left)
