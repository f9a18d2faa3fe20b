"""What simulated explorers answer."""

from schemas import Dispatch, Position, RolloutFinished


def completed(order: Dispatch, *, version: int, seconds: float, offset: int = 0) -> RolloutFinished:
    return RolloutFinished(
        explorer=order.explorer,
        incarnation=order.incarnation,
        task_id=order.task.task_id,
        attempt=order.attempt,
        batch_id=order.batch_id,
        batch_type="train",
        status="completed",
        completed_runs=order.repeat_times,
        total_runs=order.repeat_times,
        metrics=[{"reward": 1.0}],
        experience=Position(partition=0, offset=offset),
        samples=order.repeat_times,
        version_min=version,
        version_max=version,
        seconds=seconds,
    )
