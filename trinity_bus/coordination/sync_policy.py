"""Sync styles: which version a train batch needs, when the trainer publishes, and when explorers load it. Pure.

Versions count trained steps, and the train batch of sequence ``k`` is trained by step ``k``. In what follows, ``e`` and
``t`` are the sync intervals of explorers and trainer (both ``sync_interval`` where not set), ``o`` is ``sync_offset``,
``s`` is ``max_staleness``, and ``n = max(0, floor((k - 1 - o) / e))`` is the number of syncs before batch ``k``.

===================  ==============================  ==========================  ======================================
style                step ``v`` is published when    batch ``k`` needs           explorers load a version
===================  ==============================  ==========================  ======================================
``fixed``            ``v mod t = 0``, and some       the newest multiple of      when no batch that is dispatched needs
                     batch needs it                  ``t`` up to ``e * n``       an older one
``explorer_driven``  the explorers' side has asked   ``k - 1 - s``               at once
``trainer_driven``   ``v mod t = 0``                 ``k - 1 - s``, and what is  at once
                                                     out when it is dispatched
``fully_async``      ``v mod t = 0``                 ``k - 1 - s``               at once
===================  ==============================  ==========================  ======================================

A batch needs *at least* its version. "At once" means beside generation, and after the round under way, which is not
given up for a newer version; ``fixed`` alone does that, because each version is the only one that samples some batch.
The trainer never waits: a version that is published too early is *held*. docs/versions.md has timelines and advice.

``explorer_driven`` asks for the versions that the next ``e`` batches need (``at_least``), and nobody waits for them.

Staleness. A sample of batch ``k`` drawn by version ``v`` is ``k - 1 - v`` versions old, at most ``s`` if and only if
``v >= k - 1 - s``. Explorers only move to newer versions while they work, so asking this of the version at dispatch is
enough; a result that says otherwise is not accepted. With ``fixed`` that is at most
``o + e - 1 + t - gcd(e, t)``; with the other styles ``s``, which must leave room for the intervals. Settings under
which a batch would need a version that nobody publishes are refused when the policy is made.
"""

import math
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
class SyncPolicy:
    """A sync style with its intervals: ``e``, ``t``, ``o`` and ``s`` of the table above.

    ``max_staleness`` None: with ``fixed``, what follows from the others; else 0.

    Raises:
        ConfigError: A batch would need a version that is never published, or be staler than allowed.
    """

    style: SyncStyle = "fully_async"
    explorer_interval: int = 1
    trainer_interval: int = 1
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
            explorer_interval=synchronizer.explorer_sync_interval or synchronizer.sync_interval,
            trainer_interval=synchronizer.trainer_sync_interval or synchronizer.sync_interval,
            offset=synchronizer.sync_offset,
            max_staleness=None if left_open else coordinator.max_staleness,
        )

    @property
    def staleness_bound(self) -> int:
        if self.style != "fixed":
            return self.max_staleness or 0
        e, t = self.explorer_interval, self.trainer_interval
        return self.offset + e - 1 + t - math.gcd(e, t)

    @property
    def finishes_rounds(self) -> bool:
        return self.style != "fixed"

    def version_needed(self, sequence: int, announced: int = 0) -> int:
        """Return the oldest version that the train batch of this sequence, from 1, may be sampled with."""
        if self.style == "fixed":
            syncs = max(0, (sequence - 1 - self.offset) // self.explorer_interval)
            return self._published_by(self.explorer_interval * syncs)
        bound = required_version(sequence, self.staleness_bound)
        return max(bound, announced) if self.style == "trainer_driven" else bound

    def moved_down(self, sequence: int, needed: int) -> int:
        """Return what a batch needs that has moved down to this sequence: never more than before, ``needed``."""
        return needed if self.style == "trainer_driven" else min(needed, self.version_needed(sequence))

    def publishes(self, step: int, *, published: int = 0, wanted: int = 0) -> bool:
        """Whether the trainer publishes after this step. ``wanted``: what was asked for last, or 0; a newer will do."""
        if self.style == "explorer_driven":
            return published < wanted <= step
        if step % self.trainer_interval != 0:
            return False
        if self.style != "fixed":
            return True
        reached = -(-step // self.explorer_interval) * self.explorer_interval
        return self._published_by(reached) == step

    def holds(self, version: int, *, served: int, oldest_needed: int | None) -> bool:
        """Whether a published version is kept from the explorers, because a batch is sampled with an older one."""
        return oldest_needed is not None and oldest_needed <= min(served, version - 1)

    def want(self, finalized: int, asked_after: int) -> tuple[int, int] | None:
        """Return what the explorers' side asks for now; None if it has (last after ``asked_after``), or never does.

        That is the sequence of the batch after which it asks, and what the batches up to the next sync need at least.
        """
        if self.style != "explorer_driven" or finalized <= self.offset:
            return None
        after = finalized - (finalized - self.offset) % self.explorer_interval
        if after <= max(asked_after, self.offset):
            return None
        return after, required_version(after + self.explorer_interval, self.staleness_bound)

    def _published_by(self, step: int) -> int:
        # The newest version of a trainer that publishes every ``t`` steps and has trained so many.
        return step // self.trainer_interval * self.trainer_interval

    def _problem(self) -> str | None:
        bound, limit = self.staleness_bound, self.max_staleness
        e, t, o = self.explorer_interval, self.trainer_interval, self.offset
        if self.style == "fixed":
            if limit is not None and bound > limit:
                return (
                    f"style fixed with these intervals and offset draws samples up to {bound} versions old: set "
                    f"coordinator.max_staleness to {bound} or more, leave it unset, or lower "
                    "synchronizer.sync_interval or synchronizer.sync_offset"
                )
            return None
        if self.style == "explorer_driven":
            if o + e > bound + 1:
                return (
                    f"style explorer_driven asks for its first version after batch {o + e}, but batch {bound + 2} "
                    f"needs one before: set coordinator.max_staleness to {o + e - 1} or more, or "
                    f"synchronizer.explorer_sync_interval plus synchronizer.sync_offset to {bound + 1} or less"
                )
            return None
        if t > bound + 1:
            return (
                f"style {self.style}: the trainer publishes every {t} steps, but batch {bound + 2} needs version 1: "
                f"set coordinator.max_staleness to {t - 1} or more, or synchronizer.trainer_sync_interval to "
                f"{bound + 1} or less"
            )
        return None
