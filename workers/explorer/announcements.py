"""Which announced versions concern an explorer. Pure: no clock, no client, no task."""

from collections.abc import Iterable
from typing import Any

from schemas import Member, ModelVersion


def newest(records: Iterable[Any], model: str) -> ModelVersion | None:
    """Return the last announcement of ``model``: the topic is compacted, the last record is the present."""
    found = None
    for record in records:
        if isinstance(record, ModelVersion) and record.model == model:
            found = record
    return found


def membership(announced: ModelVersion, explorer: str, incarnation: str) -> Member | None:
    """Return this incarnation of the explorer among the members, if it is one. Who is not named does not move."""
    for member in announced.members:
        if (member.explorer, member.incarnation) == (explorer, incarnation):
            return member
    return None


def supersedes(announced: ModelVersion, under_way: ModelVersion) -> bool:
    """Whether an announcement ends a transfer that is under way: every one that is not its mere repetition does."""
    what = (announced.trainer_incarnation, announced.epoch, announced.version)
    return what != (under_way.trainer_incarnation, under_way.epoch, under_way.version)
