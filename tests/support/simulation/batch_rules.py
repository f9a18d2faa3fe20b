"""What must hold of batches, and of the manifests with which they end."""

from collections import Counter
from typing import TYPE_CHECKING

from schemas import BatchLifecycleState as State
from schemas import BatchRecord, CancelTasks, FinalizeBatch, ManifestEntry
from tests.support.simulation.invariant import Invariant, hold
from trinity_bus.coordination import TRANSITIONS, staleness

if TYPE_CHECKING:
    from tests.support.simulation.invariants import Invariants

WORKING = (State.RUNNING, State.FINALIZING)


class BatchRules:
    def __init__(self, seen: "Invariants") -> None:
        self._seen = seen
        self.in_training: set[str] = set()  # train batches that are handed out and not ended
        self._named: Counter[tuple[int, int]] = Counter()
        self._manifested: set[str] = set()
        self._before_training: set[str] = set()  # batches that got their place before anybody had trained

    def check(self, batch: BatchRecord) -> None:
        before = self._seen.batches.get(batch.batch_id)
        if before is None:
            hold(batch.state is State.PENDING, Invariant.TRANSITIONS, f"{batch.batch_id} begins as {batch.state}")
        else:
            legal = batch.state in TRANSITIONS[before.state]
            hold(legal, Invariant.TRANSITIONS, f"{batch.batch_id} goes from {before.state} to {batch.state}")
        self._seen.batches[batch.batch_id] = batch
        if batch.state is State.RUNNING and not self._seen.published:
            self._before_training.add(batch.batch_id)
        if is_ordered(batch):
            change = self.in_training.add if batch.state in WORKING else self.in_training.discard
            change(batch.batch_id)
        if batch.state is State.FINALIZED:
            self._finalized(batch)
        elif batch.state is State.ABORTED:
            hold(batch.reason, Invariant.TRANSITIONS, f"{batch.batch_id} is aborted and does not say why")
            self._aborted(batch)
        else:
            hold(not batch.manifest, Invariant.MANIFEST, f"{batch.batch_id} is {batch.state} and has a manifest")

    def _finalized(self, batch: BatchRecord) -> None:
        of_batch = self._seen.results_of[batch.batch_id]
        for entry in batch.manifest:
            self._named_once(entry)
        tasks = [entry.task_id for entry in batch.manifest]
        hold(sorted(tasks) == sorted(r.task_id for r in of_batch), Invariant.MANIFEST, f"{batch.batch_id} has {tasks}")
        for entry in batch.manifest:
            self._entry(batch, entry)
        statuses = Counter(entry.status for entry in batch.manifest)
        counts = (batch.completed_task_count, batch.failed_task_count, batch.aborted_task_count)
        right = (len(tasks) - statuses["aborted"], statuses["failed"], statuses["aborted"])
        hold(counts == right, Invariant.MANIFEST, f"{batch.batch_id} counts {counts} of {statuses}")
        self._enough(batch, right[0])
        if batch.batch_type == "eval" or not batch.manifest:
            detail = f"{batch.batch_id} is not trained on, and is {batch.sequence}"
            hold(batch.sequence == 0, Invariant.SEQUENCE, detail)
            return
        detail = f"{batch.sequence} after {len(self._seen.trained)}"
        hold(batch.sequence == len(self._seen.trained) + 1, Invariant.SEQUENCE, detail)
        self._seen.trained.append(batch)
        for entry in batch.manifest:
            for part in entry.parts:
                truth = self._seen.produced[entry.task_id, part.attempt]
                old = staleness(batch.sequence, truth.version_min)
                limit = self._seen.settings.max_staleness
                hold(
                    truth.fixed or old <= limit or batch.batch_id in self._before_training,
                    Invariant.STALENESS,
                    f"{entry.task_id} of batch {batch.sequence} is {old} versions old",
                )

    def _enough(self, batch: BatchRecord, finished: int) -> None:
        """A train batch ends with all its tasks, or with as many as it was to wait for."""
        if batch.batch_type != "train" or batch.expected_task_count is None:
            return
        least = batch.expected_task_count
        if batch.min_wait_num is not None:
            least = 1 if self._was_finalized_by_a_client(batch) else min(batch.min_wait_num, least)
        cancelled = self._was_cancelled(batch)
        detail = f"{batch.batch_id} ended with {finished} of {least} tasks"
        hold(finished >= least or cancelled, Invariant.MANIFEST, detail)

    def _was_finalized_by_a_client(self, batch: BatchRecord) -> bool:
        return any(isinstance(c, FinalizeBatch) and c.batch_id == batch.batch_id for c in self._seen.effects.values())

    def _was_cancelled(self, batch: BatchRecord) -> bool:
        return any(isinstance(c, CancelTasks) and c.batch_id == batch.batch_id for c in self._seen.effects.values())

    def _entry(self, batch: BatchRecord, entry: ManifestEntry) -> None:
        result = self._seen.results[entry.task_id]
        said = (entry.status, entry.parts, entry.error, entry.version_min, entry.version_max)
        told = (result.status, result.parts, result.error, result.version_min, result.version_max)
        hold(said == told, Invariant.MANIFEST, f"{batch.batch_id} says {said}, the result was {told}")

    def _named_once(self, entry: ManifestEntry) -> None:
        hold(entry.task_id not in self._manifested, Invariant.ONCE, f"{entry.task_id} is in a second manifest")
        self._manifested.add(entry.task_id)
        for part in entry.parts:
            if part.position is not None:
                where = (part.position.partition, part.position.offset)
                self._named[where] += 1
                hold(self._named[where] == 1, Invariant.ONCE, f"the experience at {where} is named twice")

    def _aborted(self, batch: BatchRecord) -> None:
        for entry in batch.manifest:
            runs = self._seen.check_parts(entry.task_id, batch.batch_type, entry.parts)
            hold(entry.task_id in self._seen.results, Invariant.MANIFEST, f"{entry.task_id} is kept and has no result")
            detail = f"{entry.task_id} has {runs}"
            hold(bool(runs) == (entry.status in ("completed", "partial")), Invariant.MANIFEST, detail)


def is_ordered(batch: BatchRecord) -> bool:
    return batch.batch_type == "train" and batch.expected_task_count is not None
