"""Whether a run has ended, and how that is told. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from trinity_bus.console.index.answers import TrainerRow
from trinity_bus.view import MeshState

_STEP_S: Final = 600.0  # So long a step may take of which nobody else tells


def end_of(state: MeshState, trainers: Sequence[TrainerRow], *, is_record: bool, is_away: bool) -> float | None:
    """Return when a run has ended; None: it goes on, or nobody can know, as where the broker ``is_away``."""
    at = state.ended_at
    if at is None or is_record:
        return at
    return None if is_away or _trains_on(trainers, state, at) else at


def _trains_on(trainers: Sequence[TrainerRow], state: MeshState, ended_at: float) -> bool:
    # Whether somebody is at steps who tells of nothing else: a stage of examples, a shadow, a replay
    return any(
        state.now - one.last_at <= _STEP_S
        and (one.follows is not None or state.trainer is None or one.last_at > ended_at + state.alive_s)
        for one in trainers
    )


def ending(state: MeshState, at: float, *, is_record: bool) -> str:
    unsaid = sorted(one.name for one in state.explorers.values() if one.state != "left")
    cut_off = f" {few(unsaid)} did not say so: a crash, or a broker that is gone." * bool(unsaid)
    others = [] if state.coordinator is None else [(state.coordinator.coordinator, state.coordinator_at)]
    others += [] if state.trainer is None else [(state.trainer.trainer, state.trainer_at)]
    when = ", ".join(f"{name} {heard(one, state.now, at)}" for name, one in others)
    cut_off += f" Coordinators and trainers never say that they leave; heard last: {when}." * bool(when)
    if is_record:
        return f"This is a record of a run: its log, opened again. The last word in it is of {_moment(at)}.{cut_off}"
    return f"The run has ended: nobody has spoken since {_moment(at)}, {span(state.now - at)} ago.{cut_off}"


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" * (len(names) > 8))


def heard(at: float, now: float, ended_at: float | None) -> str:
    """Say when somebody was heard: before the end, where there is one."""
    if ended_at is not None:
        return "at the end" if ended_at - at < 1 else f"{span(ended_at - at)} before the end"
    return f"{max(0.0, now - at):.1f} s ago"


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
