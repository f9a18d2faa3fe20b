"""Records of steps that have begun."""

from typing import Any

from schemas import StepBegun


def begun_step(step: int, **fields: Any) -> StepBegun:
    """Return the record of a step whose batch has its number."""
    writer = {"trainer": "trainer-0", "incarnation": "life-1", "run": "run-1", "model": "policy"}
    batch = {"batch_id": f"batch-{step}", "sequence": step, "next_offset": step}
    return StepBegun(step=step, **{**writer, **batch, **fields})
