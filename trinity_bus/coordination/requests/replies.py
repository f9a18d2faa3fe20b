"""Answers to commands that were given, so that a command that is sent again is answered the same way again.

What a batch came to is not kept here but with the batch's outcome, once for all who ask. A ``FinalizeBatch`` that got
it asks for it anew when it is sent again, and gets the same.
"""

from msgspec import Struct

from schemas import BatchLifecycleState, CommandReply, FinalizeBatch
from schemas.command import BatchResult, CommandError
from schemas.record import BatchType, Metrics
from schemas.topics import REPLIES
from trinity_bus.coordination.effects import Write
from trinity_bus.coordination.inputs import Request
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.memory import Memory
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups

REPLIES_KEPT = 4096
REPLIES_BYTES = 8 << 20
OUTCOMES_KEPT = 1000  # ended batches whose result is remembered, for those who ask for it later
OUTCOMES_BYTES = 16 << 20


class _Given(Struct, array_like=True, frozen=True):
    # The value of an item of ``replies/<n>``.

    error: CommandError | None
    detail: str


class _Outcome(Value, array_like=True):
    # The value of an item of ``outcomes/<n>``.

    batch_id: str
    batch_type: BatchType
    state: BatchLifecycleState
    finished_task_count: int
    metrics: Metrics
    sequence: int


class Outcomes:
    def __init__(self, store: StateStore) -> None:
        self.memory = Memory("outcomes", OUTCOMES_KEPT, OUTCOMES_BYTES, store)
        self._codec = store.codec

    def add(self, result: BatchResult) -> None:
        remembered = _Outcome(*(getattr(result, name) for name in _Outcome.__struct_fields__))
        self.memory.add(result.batch_id, self._codec.encode(remembered))

    def get(self, batch_id: str) -> BatchResult | None:
        """Return what a batch came to; None if it has not ended, or too long ago."""
        item = self.memory.get(batch_id)
        if item is None:
            return None
        remembered = self._codec.decode(_Outcome, item)
        return BatchResult(**{name: getattr(remembered, name) for name in _Outcome.__struct_fields__})


class Replies:
    def __init__(self, store: StateStore) -> None:
        self.memory = Memory("replies", REPLIES_KEPT, REPLIES_BYTES, store)
        self._codec = store.codec

    def again(self, command: Request, traceparent: str | None) -> Write | None:
        """Return the answer that the command got when it was sent before; None if it was not, or too long ago."""
        item = self.memory.get(_name(command))
        if item is None:
            return None
        remembered = self._codec.decode(_Given, item)
        return _reply(command, remembered.error, remembered.detail, traceparent)

    def give(self, command: Request, error: CommandError | None, detail: str, traceparent: str | None) -> Write:
        """Return the answer to a command, remembered."""
        self.memory.add(_name(command), self._codec.encode(_Given(error, detail)))
        return _reply(command, error, detail, traceparent)


def _name(command: Request) -> str:
    # A blank is in no identifier.
    return f"{command.client} {command.command_id}"


def _reply(command: Request, error: CommandError | None, detail: str, traceparent: str | None) -> Write:
    record = CommandReply(
        client=command.client,
        command_id=command.command_id,
        batch_id=command.subject,
        error=error,
        detail=detail,
    )
    return Write(REPLIES, record.client, record, traceparent)


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
    """Clients that wait for the end of a batch.

    Each is answered once: when its batch is FINALIZED or ABORTED, with what became of it, or when its own time is up.
    Time is the machine's; after a restart it begins again.
    """

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
