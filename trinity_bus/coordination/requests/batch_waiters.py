"""Clients that wait for the end of a batch.

Each is answered once: when its batch is FINALIZED or ABORTED, with what became of it, or when its own time is up. Time
is the machine's; after a restart it begins again.
"""

from schemas import CommandReply, FinalizeBatch
from schemas.command import BatchResult
from schemas.topics import REPLIES
from trinity_bus.coordination.effects import Write
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups


class BatchWaiter(Value, array_like=True):
    command: FinalizeBatch
    traceparent: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        self.deadline = self.timeout_s  # on the machine's own clock; set again by a restart

    @property
    def key(self) -> tuple[str, str]:
        return self.command.client, self.command.command_id

    def reply(self, result: BatchResult) -> Write:
        return ended_reply(self.command, result, self.traceparent)


class BatchWaiters:
    def __init__(self, store: StateStore) -> None:
        self._waiting: Groups[tuple[str, str], BatchWaiter] = Groups("finalizers", BatchWaiter, store)

    def add(self, waiter: BatchWaiter, now: float) -> None:
        """Add one; one that was sent again does not take the place of the first."""
        waiting = self._waiting.of(waiter.command.batch_id)
        if waiter.key not in waiting:
            waiter.deadline = now + waiter.timeout_s
            waiting.add(waiter)

    def of(self, batch_id: str) -> list[BatchWaiter]:
        return self._waiting.find(batch_id)

    def overdue(self, now: float) -> list[BatchWaiter]:
        """Those whose time is up, in the order in which they came to their batch."""
        return [one for one in self._waiting if one.deadline <= now]

    def remove(self, waiter: BatchWaiter) -> None:
        del self._waiting.of(waiter.command.batch_id)[waiter.key]

    def take(self, batch_id: str) -> list[BatchWaiter]:
        return self._waiting.take(batch_id)

    def rebuild(self, now: float) -> None:
        """Give those of a changelog their whole time again."""
        for waiter in self._waiting:
            waiter.deadline = now + waiter.timeout_s


def ended_reply(command: FinalizeBatch, result: BatchResult, traceparent: str | None) -> Write:
    record = CommandReply(
        client=command.client, command_id=command.command_id, batch_id=command.batch_id, result=result
    )
    return Write(REPLIES, record.client, record, traceparent)
