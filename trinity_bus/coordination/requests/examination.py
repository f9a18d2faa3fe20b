"""What the records of a contribution are: fit to count, or why they are not. Pure."""

from collections.abc import Iterable

from schemas import Contribute, ExperienceGroup, ExperiencePiece
from schemas.record import Metrics
from schemas.task import MAX_REPEAT_TIMES
from trinity_bus.coordination.inputs import Examined, Finding, Uncountable
from trinity_bus.rollout.metrics import Folded

MAX_METRICS = 4096  # of all runs of one contribution: they are kept until its batch has its place


class Examination:
    """One contribution, whose records are looked at one after the other: of none is more kept than what it comes to."""

    def __init__(self, command: Contribute) -> None:
        self._command = command
        self._attempt = 0
        self._workflow = ""
        self._versions: list[int] = []
        self._runs: dict[int, dict[str, Folded]] = {}

    def misnamed(self) -> Uncountable | None:
        """Return why there is nothing to look at."""
        places = {(piece.position.partition, piece.position.offset) for piece in self._command.pieces}
        if len(places) < len(self._command.pieces):
            return Uncountable("wrong_record", "two of its pieces are the same record")
        return None

    def add(self, piece: ExperiencePiece, record: object) -> Uncountable | None:
        """Look at what lies at the position of the next piece; return why it cannot count."""
        if not isinstance(record, ExperienceGroup):
            return Uncountable("wrong_record", "a position holds no experiences that can be read")
        if not self._versions:
            self._attempt, self._workflow = record.attempt, record.workflow
        author = self._command.producer or self._command.client
        said = (record.task_id, record.explorer, record.batch_type, record.attempt, len(record))
        named = (self._command.task_id, author, "train", self._attempt, piece.samples)
        if said != named:
            return Uncountable("wrong_record", f"(task, author, type, attempt, samples) are {said}, named were {named}")
        self._versions += _versions(record)
        for run_id, metrics in _steps(record):
            run = self._runs.setdefault(run_id, {})
            for key, value in metrics.items():
                run.setdefault(key, Folded(key)).add(value)
        count = sum(map(len, self._runs.values()))
        if len(self._runs) > MAX_REPEAT_TIMES or count > MAX_METRICS:
            limits = f"{MAX_REPEAT_TIMES} with {MAX_METRICS} metrics are the most"
            return Uncountable("over_limit", f"{len(self._runs)} runs with {count} metrics; {limits}")
        return None

    def finding(self) -> Finding:
        drawn = min(self._versions), max(self._versions)
        if drawn != (self._command.version_min, self._command.version_max):
            claimed = f"{self._command.version_min} to {self._command.version_max}"
            return Uncountable("wrong_record", f"drawn by versions {drawn[0]} to {drawn[1]}, named were {claimed}")
        runs = [{key: folded.result for key, folded in run.items()} for run in self._runs.values()]
        return Examined(attempt=self._attempt, workflow=self._workflow, runs=runs)


def _versions(group: ExperienceGroup) -> tuple[int, int]:
    # The lowest and highest version; -1 where a sample says of none.
    drawn = group.versions[:, 2].tolist()
    if len(set(group.versions[:, 0].tolist())) < len(group):
        return -1, max(drawn, default=-1)
    return min(drawn), max(drawn)


def _steps(group: ExperienceGroup) -> Iterable[tuple[int, Metrics]]:
    # The run of each sample, and its metrics: its reward where it has none.
    metrics = group.metrics or [{"reward": reward} for reward in group.rewards.tolist()]
    return zip(group.run_ids.tolist(), metrics, strict=True)
