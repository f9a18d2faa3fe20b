"""What a reader of the log knows of model versions: their history, which is served, by whom. Pure: no clock, no client.

Times are those of the log, in seconds since the Unix epoch.
"""

from collections import Counter
from dataclasses import dataclass, field

from schemas import (
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    PublishedVersion,
    TrainerHeartbeat,
    VersionWanted,
    WeightsSynced,
)
from schemas.event import ExplorerState

ALIVE_S = 10.0
"""Who has said nothing for this long counts as stopped; the coordinator's own limit is a setting."""


@dataclass(slots=True)
class Serving:
    """An explorer, as it last spoke."""

    incarnation: str
    state: ExplorerState
    version: int
    heard_at: float


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version that was published."""

    record: PublishedVersion
    published_at: float
    served_by: list[str]
    """Explorers that serve it now."""
    announced: bool
    """Whether it is the one to be served."""
    pinned: bool


@dataclass(slots=True)
class VersionsView:
    """Feed it the records of ``version-history``, ``model-versions`` and the topics of events.

    Args:
        model: Name of the model; what is of others is passed over.
    """

    model: str
    history: dict[int, tuple[PublishedVersion, float]] = field(default_factory=dict)
    announced: ModelVersion | None = None
    explorers: dict[str, Serving] = field(default_factory=dict)
    trainer: TrainerHeartbeat | None = None
    trainer_heard_at: float = 0.0
    wanted: int = 0
    """The version that the explorers' side asked for last, with ``explorer_driven``; 0 before."""

    def apply(self, record: object, at: float) -> None:
        """Take one record, written at this time; those of other kinds change nothing."""
        match record:
            case PublishedVersion() if record.model == self.model:
                self.history[record.version] = (record, at)
            case ModelVersion() if record.model == self.model:
                self.announced = record
            case ExplorerHeartbeat():
                serving = Serving(record.incarnation, record.state, record.model_version, at)
                self.explorers[record.explorer] = serving
            case ExplorerLeft():
                known = self.explorers.get(record.explorer)
                if known is not None and known.incarnation == record.incarnation:
                    del self.explorers[record.explorer]
            case WeightsSynced(ok=True) if record.model == self.model:
                known = self.explorers.get(record.explorer)
                if known is not None and known.incarnation == record.incarnation:
                    known.version, known.heard_at = record.version, at
            case TrainerHeartbeat() if record.model == self.model:
                self.trainer, self.trainer_heard_at = record, at
            case VersionWanted(version=None, rollback=None) if record.model == self.model:
                self.wanted = record.at_least
            case _:
                return

    @property
    def version(self) -> int:
        """The version to be served; -1 before there is any."""
        return -1 if self.announced is None else self.announced.version

    def trainer_is_alive(self, now: float) -> bool:
        """Whether the trainer has spoken lately."""
        return self.trainer is not None and now - self.trainer_heard_at <= ALIVE_S

    def status_counts(self, now: float) -> Counter[str]:
        """How many explorers are in each state; ``stopped`` are those that fell silent."""
        states = (e.state if now - e.heard_at <= ALIVE_S else "stopped" for e in self.explorers.values())
        return Counter(states)

    def serving(self, version: int, now: float) -> list[str]:
        """Names of the explorers that serve a version."""
        return sorted(
            name
            for name, explorer in self.explorers.items()
            if explorer.version == version and now - explorer.heard_at <= ALIVE_S
        )

    def rows(self, now: float) -> list[VersionRow]:
        """All versions, oldest first."""
        announced = self.announced
        return [
            VersionRow(
                record=record,
                published_at=at,
                served_by=self.serving(version, now),
                announced=version == self.version,
                pinned=announced is not None and announced.pinned and version == announced.version,
            )
            for version, (record, at) in sorted(self.history.items())
        ]
