"""What the records of a contribution are: fit to count, or why they are not. Pure."""

from collections.abc import Sequence

from schemas import Contribute, ExperienceGroup
from schemas.record import Metrics
from schemas.task import MAX_REPEAT_TIMES
from trinity_bus.coordination.inputs import Examined, Finding, Uncountable

MAX_METRICS = 4096
"""Of all runs of one contribution: they are kept until its batch has its place."""


def examined(command: Contribute, records: Sequence[object]) -> Finding:
    """Return what a client contributes.

    Args:
        command: By which it does.
        records: What lies at the positions of its pieces, in their order.
    """
    groups = [record for record in records if isinstance(record, ExperienceGroup)]
    if len(groups) != len(command.pieces):
        return Uncountable("wrong_record", "a position holds no experiences that can be read")
    first = groups[0]
    author = command.producer or command.client
    for group, piece in zip(groups, command.pieces, strict=True):
        said = (group.task_id, group.explorer, group.batch_type, group.attempt, len(group))
        named = (command.task_id, author, "train", first.attempt, piece.samples)
        if said != named:
            return Uncountable("wrong_record", f"(task, author, type, attempt, samples) are {said}, named were {named}")
    versions = [_versions(group) for group in groups]
    drawn = min(low for low, _ in versions), max(high for _, high in versions)
    if drawn != (command.version_min, command.version_max):
        claimed = f"{command.version_min} to {command.version_max}"
        return Uncountable("wrong_record", f"drawn by versions {drawn[0]} to {drawn[1]}, named were {claimed}")
    runs = _runs(groups)
    if len(runs) > MAX_REPEAT_TIMES or sum(map(len, runs.values())) > MAX_METRICS:
        return Uncountable(
            "over_limit", f"{len(runs)} runs; {MAX_REPEAT_TIMES} with {MAX_METRICS} metrics are the most"
        )
    return Examined(attempt=first.attempt, workflow=first.workflow, runs=list(runs.values()))


def _versions(group: ExperienceGroup) -> tuple[int, int]:
    """Return the lowest and highest version; -1 where a sample says of none."""
    drawn = group.versions[:, 2].tolist()
    if len(set(group.versions[:, 0].tolist())) < len(group):
        return -1, max(drawn, default=-1)
    return min(drawn), max(drawn)


def _runs(groups: Sequence[ExperienceGroup]) -> dict[int, Metrics]:
    """Return the metrics of each run: those of its last sample, its reward where it has none."""
    runs: dict[int, Metrics] = {}
    for group in groups:
        metrics = group.metrics or [{"reward": reward} for reward in group.rewards.tolist()]
        runs |= zip(group.run_ids.tolist(), metrics, strict=True)
    return runs
