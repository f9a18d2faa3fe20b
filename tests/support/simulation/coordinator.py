"""SIMULATED: the coordinator's process, and the log that it reads and commits to, around the real machine.

A transaction is decided on some records and committed with its changelog and positions, or not at all. A process that
is killed is followed by another; its transaction, if it was not committed, is decided anew, perhaps on other records.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from schemas import Dispatch, ModelVersion
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import CoordinatorMachine, Effect, Input, Observe, TaskArrived, Write

type Changes = list[tuple[str, bytes | None]]

NOT_COMPARED = ("sync", "books")  # entries that depend on times that were taken, which a restart forgets


class FencedError(Exception):
    """Another process has taken over."""


class Log:
    def __init__(self) -> None:
        self.partitions: dict[str, list[Input]] = defaultdict(list)
        self.positions: dict[str, int] = {}
        self.changelog: dict[str, bytes] = {}
        self.epoch = 0

    def send(self, partition: str, record: Input) -> None:
        self.partitions[partition].append(record)

    def unread(self, positions: Mapping[str, int], *, tasks: bool = True) -> list[str]:
        return [
            name
            for name, records in self.partitions.items()
            if positions.get(name, 0) < len(records) and (tasks or not isinstance(records[0], TaskArrived))
        ]


class Process:
    """One incarnation of a coordinator. Its start fences the one before and restores what that had committed."""

    def __init__(self, settings: CoordinatorSettings, log: Log) -> None:
        log.epoch += 1
        self._epoch = log.epoch
        self._log = log
        self.positions = dict(log.positions)
        self.machine = CoordinatorMachine(settings, SynchronizerSettings(sync_timeout_s=20))
        self.machine.restore(log.changelog.items())

    def read(self, partition: str, most: int) -> list[Input]:
        start = self.positions.get(partition, 0)
        records = self._log.partitions[partition][start : start + most]
        self.positions[partition] = start + len(records)
        return records

    def decide(self, inputs: Sequence[Input], now: float) -> tuple[list[Effect], Changes]:
        effects = self.machine.handle_all(inputs, now)
        return effects, self.machine.changes()

    def commit(self, changes: Changes) -> None:
        if self._epoch != self._log.epoch:
            raise FencedError
        for key, value in changes:
            if value is None:
                self._log.changelog.pop(key, None)
            else:
                self._log.changelog[key] = value
        self._log.positions.update(self.positions)


def compared(effects: Sequence[Effect], changes: Changes) -> tuple[list[Effect], set[tuple[str, bool]]]:
    """The part of a decision that does not depend on how long the process has lived: commands, and what is kept."""
    kept = [_timeless(command) for command in effects if not _is_left_out(command)]
    return kept, {(key, value is None) for key, value in changes if key not in NOT_COMPARED}


def _is_left_out(command: Effect) -> bool:
    return isinstance(command, Observe) or (isinstance(command, Write) and isinstance(command.record, ModelVersion))


def _timeless(command: Effect) -> Effect:
    if isinstance(command, Write) and isinstance(command.record, Dispatch):
        return replace(command, record=command.record.model_copy(update={"timeout_s": 1.0}))
    return command
