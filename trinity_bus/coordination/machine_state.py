"""What the parts of the machine share: all that outlives a restart, and what they are run with."""

from dataclasses import dataclass

from trinity_bus.awake import SteadyClock
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination.batches.ledger import Ledger
from trinity_bus.coordination.dispatch.fleet import Fleet
from trinity_bus.coordination.effects import Effects
from trinity_bus.coordination.requests.batch_waiters import BatchWaiters
from trinity_bus.coordination.requests.replies import Outcomes, Replies
from trinity_bus.coordination.state.dirty_keys import DirtyKeys
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.coordination.versions.weight_sync import WeightSync


@dataclass(frozen=True, slots=True)
class MachineContext:
    settings: CoordinatorSettings
    synchronizer: SynchronizerSettings
    clock: SteadyClock
    dirty: DirtyKeys
    out: Effects


class MachineState:
    def __init__(
        self, settings: CoordinatorSettings, synchronizer: SynchronizerSettings, policy: SyncPolicy, dirty: DirtyKeys
    ) -> None:
        self.ledger = Ledger(settings, policy, dirty)
        self.fleet = Fleet(settings.explorer_timeout_s, dirty, settings.model, settings.explorer_beats_per_s)
        self.sync = WeightSync(
            settings.model, policy, synchronizer.sync_timeout_s, dirty, most=synchronizer.sync_members
        )
        self.waiters = BatchWaiters(dirty)
        self.outcomes = Outcomes(dirty)
        self.replies = Replies(dirty)

    def rebuild(self, now: float) -> None:
        """Find again whatever follows from the tables, which were filled from a changelog."""
        self.fleet.rebuild(now)
        self.ledger.rebuild(self.fleet.attempts())
        self.sync.rebuild(now)
        self.waiters.rebuild(now)
        self.outcomes.memory.rebuild()
        self.replies.memory.rebuild()
