"""Batches that wait: first to be full, then for their turn. And the order of training.

Full train batches wait for a place in training, and producers take turns: the next place is for whoever has the fewest
batches in training. Of each producer, of those that are full the batch that was submitted first goes first. One batch
is aborted when too much waits in those that are not full, see ``batches.accounts``; never one that is filled with tasks
that name none.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from schemas import BatchLifecycleState as State
from schemas.record import BatchType
from trinity_bus.coordination.batches.accounts import Counters, Shares, Unfilled
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.limits import MAX_UNFILLED_BATCHES, MAX_UNFILLED_TASKS
from trinity_bus.coordination.sync_policy import SyncPolicy


class Admission:
    def __init__(
        self, max_inflight_batches: int, policy: SyncPolicy, counters: Counters, *, max_unfilled_bytes: int
    ) -> None:
        self.filling: dict[BatchType, Batch] = {}  # the batches that take tasks that name none
        self._max_inflight_batches = max_inflight_batches
        self._policy = policy
        self._counters = counters
        self._unfilled = Unfilled(MAX_UNFILLED_TASKS, max_unfilled_bytes, MAX_UNFILLED_BATCHES)
        self._waiting: dict[BatchType, OrderedDict[str, Batch]] = {"train": OrderedDict(), "eval": OrderedDict()}
        self._in_training: OrderedDict[str, Batch] = OrderedDict()
        self._shares = Shares(counters, "training_turns")

    def created(self, batch: Batch) -> None:
        if batch.unnamed:
            self.filling[batch.batch_type] = batch
        elif not batch.is_open:
            self._unfilled.grew(batch)

    def grew(self, batch: Batch) -> bool:
        """Note that a batch has one task more. Return whether it is full now."""
        if batch in self._unfilled:
            self._unfilled.grew(batch)
        if batch.accepted != batch.expected:
            return False
        self._counters.filled += 1
        batch.filled = self._counters.filled
        self._no_longer_filled(batch)
        self._waiting[batch.batch_type][batch.batch_id] = batch
        return True

    def shrank(self, batch: Batch) -> None:
        if batch in self._unfilled:
            self._unfilled.shrank(batch)

    def overflow(self) -> Batch | None:
        return self._unfilled.excess()

    def admit(self, *, announced: int, newest: int) -> list[Batch]:
        """Return full batches that start now, of the ``announced`` version or newer; evaluations of the ``newest``."""
        admitted = list(self._waiting["eval"].values())
        self._waiting["eval"].clear()
        for batch in admitted:
            batch.min_version = max(0, newest)
        for batch in self._next_in_training():
            self._counters.sequence += 1
            batch.sequence = self._counters.sequence
            batch.min_version = self._policy.version_needed(batch.sequence, announced)
            self._train(batch)
            admitted.append(batch)
        return admitted

    def _next_in_training(self) -> Iterator[Batch]:
        # Full train batches for which there is a place, in their order; each is in training before the next.
        waiting = self._waiting["train"]
        if not waiting or len(self._in_training) >= self._max_inflight_batches:
            return
        queues: dict[str, deque[Batch]] = {}
        for batch in sorted(waiting.values(), key=lambda batch: batch.number):
            queues.setdefault(batch.owner, deque()).append(batch)
        self._shares.forget_idle(queues)
        while queues and len(self._in_training) < self._max_inflight_batches:
            owner = min(queues, key=self._shares.rank)
            if len(queues) > 1:
                self._shares.served(owner)
            batch = queues[owner].popleft()
            if not queues[owner]:
                del queues[owner]
            del waiting[batch.batch_id]
            yield batch

    def _train(self, batch: Batch) -> None:
        self._in_training[batch.batch_id] = batch
        self._shares.take(batch.owner)

    def is_next(self, batch: Batch) -> bool:
        return batch.sequence in (0, self._counters.finalized + 1)

    def finalized(self, batch: Batch) -> None:
        self._forget(batch)
        if batch.sequence:
            self._counters.finalized = batch.sequence

    def aborted(self, batch: Batch) -> list[Batch]:
        """Note that the batch was given up. Return the train batches that have moved up by one for it."""
        self._forget(batch)
        if not batch.sequence:
            return []
        later = [other for other in self._in_training.values() if other.sequence > batch.sequence]
        self._counters.sequence -= 1
        batch.sequence = 0
        for other in later:
            other.sequence -= 1
            other.min_version = self._policy.moved_down(other.sequence, other.min_version)
        return later

    @property
    def next_sequence(self) -> int:
        return self._counters.sequence + len(self._waiting["train"]) + 1

    def restore(self, batches: Iterable[Batch]) -> None:
        pending = [batch for batch in batches if batch.state is State.PENDING]
        for batch in sorted(pending, key=_last_touched):
            if not batch.filled:
                self.created(batch)
        for batch in sorted(pending, key=lambda b: b.filled):
            if batch.filled:
                self._waiting[batch.batch_type][batch.batch_id] = batch
        for batch in sorted((b for b in batches if b.sequence), key=lambda b: b.sequence):
            self._train(batch)

    def _no_longer_filled(self, batch: Batch) -> None:
        self._unfilled.remove(batch)
        if self.filling.get(batch.batch_type) is batch:
            del self.filling[batch.batch_type]

    def _forget(self, batch: Batch) -> None:
        self._no_longer_filled(batch)
        self._waiting[batch.batch_type].pop(batch.batch_id, None)
        if self._in_training.pop(batch.batch_id, None) is not None:
            self._shares.release(batch.owner)


def _last_touched(batch: Batch) -> tuple[int, int]:
    # When the batch was registered or got its newest task, counted in accepted tasks; then its own number.
    orders = (
        [batch.born]
        + [task.order for task in batch.open_tasks.values()]
        + [result.order for result in batch.results.values()]
    )
    return max(orders), batch.number
