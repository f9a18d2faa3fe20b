"""Clients that wait for the end of a batch.

Each is answered once: when its batch is FINALIZED or ABORTED, with what became of it, or when its own time is up. Time
is the machine's; after a restart it begins again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas import CommandReply, FinalizeBatch
from schemas.command import BatchResult
from trinity_bus.coordination.commands import Reply
from trinity_bus.coordination.journal import Journal


@dataclass(frozen=True, slots=True)
class Finalizer:
    """One command that waits."""

    command: FinalizeBatch
    traceparent: str | None
    timeout_s: float
    deadline: float = field(compare=False)

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
        self._journal = journal
        self._waiting: dict[str, dict[tuple[str, str], Finalizer]] = {}

    def add(self, finalizer: Finalizer) -> None:
        """One more; one that was sent again takes the place of the first."""
        batch_id = finalizer.command.batch_id
        self._waiting.setdefault(batch_id, {}).setdefault(finalizer.key, finalizer)
        self._journal.touch(f"finalizers/{batch_id}")

    def of(self, batch_id: str) -> list[Finalizer]:
        """Those that wait for a batch."""
        return list(self._waiting.get(batch_id, {}).values())

    def batch_ids(self) -> Iterator[str]:
        """Batches that somebody waits for."""
        return iter(self._waiting)

    def overdue(self, now: float) -> list[Finalizer]:
        """Those whose time is up, in the order in which they came to their batch."""
        return [one for waiting in self._waiting.values() for one in waiting.values() if one.deadline <= now]

    def remove(self, finalizer: Finalizer) -> None:
        """It is answered."""
        batch_id = finalizer.command.batch_id
        waiting = self._waiting[batch_id]
        del waiting[finalizer.key]
        if not waiting:
            del self._waiting[batch_id]
        self._journal.touch(f"finalizers/{batch_id}")

    def take(self, batch_id: str) -> list[Finalizer]:
        """All that wait for a batch; none are left."""
        taken = self._waiting.pop(batch_id, {})
        if taken:
            self._journal.touch(f"finalizers/{batch_id}")
        return list(taken.values())

    def restore(self, finalizers: list[Finalizer]) -> None:
        """Takes over those of a changelog, whose deadlines are set anew."""
        for finalizer in finalizers:
            self._waiting.setdefault(finalizer.command.batch_id, {})[finalizer.key] = finalizer


def ended_reply(command: FinalizeBatch, result: BatchResult, traceparent: str | None) -> Reply:
    """The answer to who asks for a batch that has ended."""
    record = CommandReply(
        client=command.client, command_id=command.command_id, batch_id=command.batch_id, result=result
    )
    return Reply(record, traceparent)
