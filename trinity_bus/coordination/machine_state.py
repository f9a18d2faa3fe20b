"""What the parts of the machine share: settings, time, effects, and all that outlives a restart."""

from schemas.command import BatchResult
from trinity_bus.awake import SteadyClock
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination.batches.ledger import Ledger
from trinity_bus.coordination.dispatch.fleet import Fleet
from trinity_bus.coordination.effects import Effects
from trinity_bus.coordination.replies import OUTCOMES_BYTES, OUTCOMES_KEPT, BatchWaiter, Replies, Waiters
from trinity_bus.coordination.state.memory import Memory
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.coordination.versions.weight_sync import WeightSync

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
