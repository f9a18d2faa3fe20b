"""Clients that wait for the end of a batch.

Each is answered once: when its batch is FINALIZED or ABORTED, with what became of it, or when its own time is up. Time
is the machine's; after a restart it begins again.
"""

from schemas import CommandReply, FinalizeBatch
from schemas.command import BatchResult
from trinity_bus.coordination.commands import Reply
from trinity_bus.coordination.journal import Journal
from trinity_bus.coordination.state_codec import Value
from trinity_bus.coordination.tables import Groups


class Finalizer(Value, array_like=True):
    """One command that waits."""

    command: FinalizeBatch
    traceparent: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        self.deadline = self.timeout_s
        """On the machine's own clock; set anew by a restart."""

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known when it is sent again."""
        return self.command.client, self.command.command_id

    def reply(self, result: BatchResult) -> Reply:
        """Its answer when the batch has ended."""
        return ended_reply(self.command, result, self.traceparent)


class Finalizers:
    """All that wait, by batch.

    Args:
        journal: Told of every change.
    """

    def __init__(self, journal: Journal) -> None:
        self._waiting: Groups[tuple[str, str], Finalizer] = Groups("finalizers", Finalizer, journal)

    def add(self, finalizer: Finalizer, now: float) -> None:
        """Adds one; one that was sent again does not take the place of the first."""
        waiting = self._waiting.of(finalizer.command.batch_id)
        if finalizer.key not in waiting:
            finalizer.deadline = now + finalizer.timeout_s
            waiting.add(finalizer)

    def of(self, batch_id: str) -> list[Finalizer]:
        """Those that wait for a batch."""
        return self._waiting.find(batch_id)

    def overdue(self, now: float) -> list[Finalizer]:
        """Those whose time is up, in the order in which they came to their batch."""
        return [one for one in self._waiting if one.deadline <= now]

    def remove(self, finalizer: Finalizer) -> None:
        """It is answered."""
        del self._waiting.of(finalizer.command.batch_id)[finalizer.key]

    def take(self, batch_id: str) -> list[Finalizer]:
        """All that wait for a batch; none are left."""
        return self._waiting.take(batch_id)

    def rebuild(self, now: float) -> None:
        """Gives those of a changelog their whole time again."""
        for finalizer in self._waiting:
            finalizer.deadline = now + finalizer.timeout_s


def ended_reply(command: FinalizeBatch, result: BatchResult, traceparent: str | None) -> Reply:
    """The answer to who asks for a batch that has ended."""
    record = CommandReply(
        client=command.client, command_id=command.command_id, batch_id=command.batch_id, result=result
    )
    return Reply(record, traceparent)
