"""What the pool of runners has whoever owns it do."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartRunner:
    serial: int


@dataclass(frozen=True, slots=True)
class StartJob:
    """Give a job to a runner, which may not have said anything yet."""

    serial: int
    job: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    serial: int
    job: int


@dataclass(frozen=True, slots=True)
class PingRunner:
    serial: int


@dataclass(frozen=True, slots=True)
class CloseRunner:
    """Have a runner end; it has nothing to do."""

    serial: int


@dataclass(frozen=True, slots=True)
class KillRunner:
    serial: int
    number: signal.Signals
    why: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """A job is to blame for the death of its runner."""

    job: int
    how: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No runner comes up."""

    why: str


type PoolEffect = StartRunner | StartJob | CancelJob | PingRunner | CloseRunner | KillRunner | FailJob | GiveUp
