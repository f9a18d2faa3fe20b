"""What is told of the runners, for people to look at. Pure.

A report goes through the log once a second: it stays small. What workflows say of themselves is told as long as there
is room for it; an attempt whose values found none is told without them, and says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from schemas import Dispatch, RunningAttempt
from schemas.event import RunnerState
from trinity_bus.rollout.workflow import MAX_STATE_BYTES
from trinity_bus.runners.pool import PoolRunner

MAX_VALUES_BYTES = 256 << 10  # of what all workflows say of themselves, in one report
MAX_ATTEMPTS = 1024  # of one runner that are told of
_OWN = frozenset(["workflow_id", "model_version", "begin_time", "running_time", "terminate_time"])


@dataclass(slots=True, kw_only=True)
class JobStatus:
    """What is known of one attempt in a runner. Times are seconds since the Unix epoch, for people."""

    order: Dispatch
    model_version: int  # that the engine served when it began
    begin_time: float
    terminate_time: float | None = None
    said: Mapping[str, Any]  # by its workflow


def accept_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a workflow says of itself, or ``too_large`` alone: runners are not trusted with a report's size."""
    try:
        small = len(msgpack.packb(values)) <= MAX_STATE_BYTES
    except (TypeError, ValueError, OverflowError):
        small = False
    return {name: value for name, value in values.items() if name not in _OWN} if small else {"too_large": True}


def runner_states(
    explorer: str,
    runners: Sequence[PoolRunner],
    *,
    pids: Mapping[int, int],
    running: Mapping[int, JobStatus],
    last: Mapping[int, JobStatus],
    now: float,
) -> list[RunnerState]:
    """Return the states of all runners, at a time in seconds since the Unix epoch.

    ``pids`` are by serial, ``running`` by job; ``last`` is what ended last, by serial, told while the runner is idle.
    """
    room = MAX_VALUES_BYTES
    states = []
    for runner in runners:
        told = [running[job] for job in runner.jobs if job in running][:MAX_ATTEMPTS]
        shown = told or ([last[runner.serial]] if runner.serial in last else [])
        values = []
        for job in shown:
            size = len(msgpack.packb(job.said))
            room -= size
            values.append(_values(job, now, job.said if room >= 0 else {"omitted": True}))
        states.append(
            RunnerState(
                runner=_name(explorer, runner),
                state=runner.state,
                pid=pids.get(runner.serial, 0),
                running=[RunningAttempt(task_id=job.order.task.task_id, attempt=job.order.attempt) for job in told],
                completed=runner.ended,
                restarts=runner.restarts,
                rss_mib=round(runner.rss_mib, 1),
                values=values,
            )
        )
    return states


def _name(explorer: str, runner: PoolRunner) -> str:
    return f"{explorer}/{runner.place}" if runner.place is not None else f"{explorer}/extra-{runner.serial}"


def _values(job: JobStatus, now: float, said: Mapping[str, Any]) -> dict[str, Any]:
    ended = {} if job.terminate_time is None else {"terminate_time": job.terminate_time}
    return {
        **said,
        "workflow_id": f"{job.order.batch_id}/{job.order.task.task_id}/{job.order.run_id_base}",
        "model_version": job.model_version,
        "begin_time": job.begin_time,
        "running_time": round((job.terminate_time or now) - job.begin_time, 3),
        **ended,
    }
