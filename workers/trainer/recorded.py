"""The steps of another trainer, as ``steps`` tells of them: which can be trained once more. Pure.

::

    records of `steps` --take--> of each step of that trainer: whose run, where its record lies, what it needs
    the steps to be trained --gap--> the first of them that cannot be any more, and why; or None

The records themselves stay on the log: they may be large.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas import StepBegun
from schemas.step import step_of_key
from trinity_bus.bus import Received, Undecodable


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    run: str
    # Of its record in ``steps``
    offset: int
    # Of each partition of ``experiences`` the first offset that it was trained on
    needs: Mapping[int, int] = field(default_factory=dict)
    # Its batch, and whether that was passed over
    what: tuple[str, bool] = ("", False)
    # Why its record cannot be read; empty where it can
    unreadable: str = ""


class RecordedSteps:
    def __init__(self, trainer: str) -> None:
        self.trainer = trainer
        # The run of the newest record; empty where there is none
        self.run = ""
        self._steps: dict[int, Recorded] = {}

    def take(self, received: Received[Any]) -> None:
        record, step = received.record, step_of_key(received.key, self.trainer)
        if step is None:
            return
        if isinstance(record, Undecodable):
            why = f"{received.place} cannot be read ({record.reason}: {record.detail})"
            self._steps[step] = Recorded(run=self.run, offset=received.offset, unreadable=why)
        elif not isinstance(record, StepBegun):
            self._steps.pop(step, None)
        elif (record.trainer, record.step) == (self.trainer, step):
            self.run = record.run
            what = (record.batch_id, record.skipped is not None)
            self._steps[step] = Recorded(run=record.run, offset=received.offset, needs=_needs(record), what=what)

    def of(self, run: str) -> dict[int, Recorded]:
        return {step: said for step, said in self._steps.items() if said.run == run}


def _needs(record: StepBegun) -> dict[int, int]:
    first: dict[int, int] = {}
    for group in (*record.groups, *record.replayed):
        for part in group.parts:
            if (at := part.position) is not None:
                first[at.partition] = min(at.offset, first.get(at.partition, at.offset))
    return first


def gap(steps: Mapping[int, Recorded], first: int, last: int, kept_from: Mapping[int, int]) -> tuple[int, str] | None:
    """Return the first step that cannot be trained once more, and why; None where all can.

    ``kept_from`` has of each partition of ``experiences`` the first offset that is left.
    """
    for step in range(first, last + 1):
        said = steps.get(step)
        if said is None:
            return step, "its record on steps is gone"
        if said.unreadable:
            return step, said.unreadable
        if any(offset < kept_from.get(partition, 0) for partition, offset in said.needs.items()):
            return step, "its experiences are gone from the log"
    return None


def first_trainable(
    steps: Mapping[int, Recorded], starts: Iterable[int], last: int, kept_from: Mapping[int, int]
) -> int | None:
    """Return the first step from which on all can be trained once more; None where there is none.

    ``starts``: after which steps there are weights to begin with; 0 for the model itself.
    """
    firsts = (start + 1 for start in sorted(starts) if start < last)
    return next((first for first in firsts if gap(steps, first, last, kept_from) is None), None)


def contradicted(own: Mapping[int, Recorded], theirs: Mapping[int, Recorded], trained: int) -> int | None:
    """Return the first step that was trained here, and that the other trainer has taken otherwise; None for none."""
    both = sorted(step for step in own.keys() & theirs.keys() if step <= trained)
    return next((step for step in both if own[step].what != theirs[step].what), None)
