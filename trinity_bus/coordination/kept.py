"""What the parts of the machine share: all that outlives a restart, and what they are run with."""

from dataclasses import dataclass

from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination.clock import SteadyClock
from trinity_bus.coordination.commands import Outbox
from trinity_bus.coordination.finalizers import Finalizers
from trinity_bus.coordination.fleet import Fleet
from trinity_bus.coordination.journal import Journal
from trinity_bus.coordination.ledger import Ledger
from trinity_bus.coordination.replies import Outcomes, Replies
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.coordination.versions import WeightSync


@dataclass(frozen=True, slots=True)
class Context:
    """What each part is run with."""

    settings: CoordinatorSettings
    synchronizer: SynchronizerSettings
    clock: SteadyClock
    journal: Journal
    out: Outbox


class Kept:
    """The state of a machine.

    Attributes:
        ledger: Tasks and batches.
        fleet: Explorers.
        sync: Versions of weights.
        finalizers: Who waits for the end of a batch.
        outcomes: What became of batches that have ended.
        replies: Answers that were given.
    """

    def __init__(
        self, settings: CoordinatorSettings, synchronizer: SynchronizerSettings, policy: SyncPolicy, journal: Journal
    ) -> None:
        self.ledger = Ledger(settings, policy, journal)
        self.fleet = Fleet(settings.explorer_timeout_s, journal)
        self.sync = WeightSync(settings.model, policy, synchronizer.sync_timeout_s, journal)
        self.finalizers = Finalizers(journal)
        self.outcomes = Outcomes(journal)
        self.replies = Replies(journal)

    def rebuild(self, now: float) -> None:
        """Finds again whatever follows from the tables, which were filled from a changelog."""
        self.fleet.rebuild(now)
        self.ledger.rebuild(self.fleet.attempts())
        self.sync.rebuild(now)
        self.finalizers.rebuild(now)
        self.outcomes.memory.rebuild()
        self.replies.memory.rebuild()
