"""Sync styles: which version a train batch needs, when the trainer publishes, and when explorers load it. Pure.

Versions count trained steps, and the train batch of sequence ``k`` is trained by step ``k``. docs/versions.md has the
table of styles, with timelines and advice. A batch needs *at least* its version. The trainer never waits: a version
that is published too early is *held*. ``explorer_driven`` asks for the versions that the batches until the next sync
need (``at_least``), and nobody waits for them.

Staleness. A sample of batch ``k`` drawn by version ``v`` is ``k - 1 - v`` versions old, at most ``s`` if and only if
``v >= k - 1 - s``. Explorers only move to newer versions while they work, so asking this of the version at dispatch is
enough; a result that says otherwise is not accepted. With ``fixed`` that is at most ``offset + interval - 1``; with the
other styles ``max_staleness``, which must leave room for the interval. Settings under which a batch would need a
version that nobody publishes are refused when the policy is made.
"""

from dataclasses import dataclass
from typing import Literal

from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.errors import ConfigError

type SyncStyle = Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"]


def required_version(sequence: int, max_staleness: int) -> int:
    """Return the oldest version whose samples may be in the train batch of this sequence (1, 2, 3 ...)."""
    return max(0, sequence - 1 - max_staleness)


def staleness(sequence: int, version: int) -> int:
    """How many versions old a sample of ``version`` is when the batch of this sequence is trained."""
    return sequence - 1 - version


@dataclass(frozen=True, slots=True)
class VersionRequest:
    after: int  # sequence of the batch after which it syncs
    at_least: int  # what the batches up to the next sync need


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """A sync style, its interval and offset.

    ``max_staleness`` None: with ``fixed``, what follows from the others; else 0.

    Raises:
        ConfigError: A batch would need a version that is never published, or be staler than allowed.
    """

    style: SyncStyle = "fully_async"
    interval: int = 1
    offset: int = 0
    max_staleness: int | None = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise ConfigError(problem)

    @classmethod
    def of(cls, synchronizer: SynchronizerSettings, coordinator: CoordinatorSettings) -> "SyncPolicy":
        """Return the policy that the settings describe; ConfigError where they starve the mesh or conflict."""
        left_open = synchronizer.sync_style == "fixed" and "max_staleness" not in coordinator.model_fields_set
        return cls(
            style=synchronizer.sync_style,
            interval=synchronizer.sync_interval,
            offset=synchronizer.sync_offset,
            max_staleness=None if left_open else coordinator.max_staleness,
        )

    @property
    def staleness_bound(self) -> int:
        return self.offset + self.interval - 1 if self.style == "fixed" else self.max_staleness or 0

    @property
    def finishes_rounds(self) -> bool:
        return self.style != "fixed"

    def version_needed(self, sequence: int, announced: int = 0) -> int:
        """Return the oldest version that the train batch of this sequence, from 1, may be sampled with."""
        if self.style == "fixed":
            return max(0, (sequence - 1 - self.offset) // self.interval) * self.interval
        bound = required_version(sequence, self.staleness_bound)
        return max(bound, announced) if self.style == "trainer_driven" else bound

    def moved_down(self, sequence: int, needed: int) -> int:
        """Return what a batch needs that has moved down to this sequence: never more than before, ``needed``."""
        return needed if self.style == "trainer_driven" else min(needed, self.version_needed(sequence))

    def publishes(self, step: int, *, published: int = 0, wanted: int = 0) -> bool:
        """Whether the trainer publishes after this step. ``wanted``: what was asked for last, or 0; a newer will do."""
        if self.style == "explorer_driven":
            return published < wanted <= step
        return step % self.interval == 0

    def holds(self, version: int, *, served: int, oldest_needed: int | None) -> bool:
        """Whether a published version is kept from the explorers, because a batch is sampled with an older one."""
        return oldest_needed is not None and oldest_needed <= min(served, version - 1)

    def want(self, finalized: int, asked_after: int) -> VersionRequest | None:
        """Return what the explorers' side asks for now; None if it has (last after ``asked_after``), or never does."""
        if self.style != "explorer_driven" or finalized <= self.offset:
            return None
        after = finalized - (finalized - self.offset) % self.interval
        if after <= max(asked_after, self.offset):
            return None
        return VersionRequest(after, required_version(after + self.interval, self.staleness_bound))

    def _problem(self) -> str | None:
        bound, first = self.staleness_bound, self.interval
        if self.style == "fixed":
            if self.max_staleness is None or bound <= self.max_staleness:
                return None
            return (
                f"style fixed with this interval and offset draws samples up to {bound} versions old: set "
                f"coordinator.max_staleness to {bound} or more, leave it unset, or lower synchronizer.sync_interval or "
                "synchronizer.sync_offset"
            )
        if self.style == "explorer_driven":
            first, lower = first + self.offset, "synchronizer.sync_interval plus synchronizer.sync_offset"
            what = f"asks for its first version after batch {first}"
        else:
            lower, what = "synchronizer.sync_interval", f"publishes every {first} steps"
        if first <= bound + 1:
            return None
        return (
            f"style {self.style} {what}, but batch {bound + 2} needs version 1: set coordinator.max_staleness to "
            f"{first - 1} or more, or {lower} to {bound + 1} or less"
        )
