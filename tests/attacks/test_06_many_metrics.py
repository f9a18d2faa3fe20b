"""Attack 6: a workflow measures so much that the result of its attempt cannot be sent.

Before: the explorer ended, and so did the next one that got the task. Now: a failed attempt that says why.
"""

import pytest

from schemas import RolloutFinished, Task
from tests.integration.explorer.explorers import dispatch, explored, fork_server, settings
from trinity_bus.config import Settings
from trinity_bus.runners.fork_server import ForkServer

pytestmark = pytest.mark.integration

__all__ = ["fork_server", "settings"]


@pytest.mark.parametrize("batch_type", ["train", "eval"])
async def test_a_result_that_cannot_be_sent_is_a_failed_attempt_and_the_explorer_goes_on(
    settings: Settings, fork_server: ForkServer, batch_type: str
) -> None:
    async with explored(settings, fork_server) as mesh:
        incarnation = mesh.incarnation

        async def result_of(task_id: str, metrics: int, runs: int) -> RolloutFinished:
            task = Task(task_id=task_id, workflow="chatty", prompt=str(metrics))
            await mesh.send(dispatch(incarnation, task_id, task=task, repeat_times=runs, batch_type=batch_type))
            return await mesh.event(RolloutFinished, lambda event: event.task_id == task_id)

        too_much = await result_of("512-runs-of-50", 50, 512)
        assert (too_much.status, too_much.samples, too_much.metrics) == ("failed", 0, [])
        assert too_much.error is not None
        assert too_much.error.startswith("UnsendableResultError: ")
        assert "bytes" in too_much.error
        too_many = await result_of("65-metrics", 65, 1)
        assert too_many.status == "failed"
        assert too_many.error == "WorkflowError: run 0 has 65 metrics, at most 64 are sent"
        # The same explorer, the same incarnation: it goes on.
        good = await result_of("fine", 50, 4)
        assert (good.status, good.incarnation, len(good.metrics)) == ("completed", incarnation, 4)
