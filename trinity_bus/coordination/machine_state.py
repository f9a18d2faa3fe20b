"""What the parts of the machine share: settings, time, effects, and all that outlives a restart.

Replies to commands are kept, so that a command that is sent again gets the same one. What a batch came to is not kept
here but with the batch's outcome, once for all who ask. A ``FinalizeBatch`` that got it asks for it anew when it is
sent again, and gets the same.
"""

from msgspec import Struct

from schemas import CommandReply, FinalizeBatch
from schemas.command import BatchResult, CommandError
from schemas.topics import REPLIES
from trinity_bus.awake import SteadyClock
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination.batches.ledger import Ledger
from trinity_bus.coordination.dispatch.fleet import Fleet
from trinity_bus.coordination.effects import Effects, Write
from trinity_bus.coordination.inputs import Request
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.memory import Memory
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.coordination.weight_sync import WeightSync

REPLIES_KEPT = 4096
REPLIES_BYTES = 8 << 20
OUTCOMES_KEPT = 1000  # ended batches whose result is remembered, for those who ask for it later
OUTCOMES_BYTES = 16 << 20


class _Given(Struct, array_like=True, frozen=True):
    error: CommandError | None
    detail: str


class Replies(Memory[_Given]):
    def __init__(self, store: StateStore) -> None:
        super().__init__("replies", _Given, REPLIES_KEPT, REPLIES_BYTES, store)

    def again(self, command: Request, traceparent: str | None) -> Write | None:
        """Return the answer that the command got when it was sent before; None if it was not, or too long ago."""
        given = self.get(_name(command))
        return None if given is None else reply(command, traceparent, given.error, given.detail)

    def give(self, command: Request, error: CommandError | None, detail: str, traceparent: str | None) -> Write:
        self.add(_name(command), _Given(error, detail))
        return reply(command, traceparent, error, detail)


def _name(command: Request) -> str:
    # A blank is in no identifier.
    return f"{command.client} {command.command_id}"


def reply(
    command: Request,
    traceparent: str | None,
    error: CommandError | None = None,
    detail: str = "",
    result: BatchResult | None = None,
) -> Write:
    record = CommandReply(
        client=command.client,
        command_id=command.command_id,
        batch_id=command.subject,
        error=error,
        detail=detail,
        result=result,
    )
    return Write(REPLIES, record.client, record, traceparent)


class BatchWaiter(Value, array_like=True):
    """A client that waits for the end of a batch, and is answered once: with its result, or when its time is up."""

    command: FinalizeBatch
    traceparent: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        self.wait_from(0.0)

    def wait_from(self, now: float) -> None:
        """Begin its time, on the machine's own clock; again after a restart."""
        self.deadline = now + self.timeout_s

    @property
    def key(self) -> tuple[str, str]:
        return self.command.client, self.command.command_id


type Waiters = Groups[tuple[str, str], BatchWaiter]  # by the batch that they wait for


LONGEST_STEP = 0.25  # share of ``explorer_timeout_s`` that may pass at once; see trinity_bus.awake


class MachineState:
    def __init__(self, settings: CoordinatorSettings, synchronizer: SynchronizerSettings) -> None:
        self.settings = settings
        self.synchronizer = synchronizer
        self.policy = SyncPolicy.of(synchronizer, settings)
        self.clock = SteadyClock(settings.explorer_timeout_s * LONGEST_STEP)
        self.out = Effects()
        self.store = store = StateStore()
        self.ledger = Ledger(settings, self.policy, store)
        self.fleet = Fleet(settings.explorer_timeout_s, store, settings.model, settings.explorer_beats_per_s)
        self.sync = WeightSync(
            settings.model, self.policy, synchronizer.sync_timeout_s, store, most=synchronizer.sync_members
        )
        self.waiters: Waiters = Groups("finalizers", BatchWaiter, store)
        self.outcomes: Memory[BatchResult] = Memory("outcomes", BatchResult, OUTCOMES_KEPT, OUTCOMES_BYTES, store)
        self.replies = Replies(store)

    def rebuild(self) -> None:
        now = self.clock.now
        self.ledger.rebuild(self.fleet.resumed(now))
        self.fleet.rebuild(now)
        self.sync.rebuild(now)
        for waiter in self.waiters:
            waiter.wait_from(now)
        self.outcomes.rebuild()
        self.replies.rebuild()


class Handler:
    def __init__(self, state: MachineState) -> None:
        self._settings = state.settings
        self._policy = state.policy
        self._clock = state.clock
        self._out = state.out
        self._ledger = state.ledger
        self._fleet = state.fleet
        self._sync = state.sync
        self._waiters = state.waiters
        self._outcomes = state.outcomes
        self._replies = state.replies
