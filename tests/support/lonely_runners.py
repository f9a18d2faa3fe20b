"""Starts runners as an explorer does, on a FAKE engine, one of them blocked; says so, and waits to be killed."""

import asyncio
import contextlib
import os
import sys

from schemas import Dispatch, Task
from tests.support.fake_engine import TOKENIZER, FakeEngine
from tests.support.waiting import until
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.runtime.service import run_service
from workers.explorer.runners.nursery import Nursery
from workers.explorer.runners.service import Runners


async def main() -> None:
    settings = Settings(explorer=ExplorerSettings(runners=2, slots=4, workflow_modules="tests.support.rogue_workflows"))
    order = Dispatch(
        explorer="explorer-0",
        incarnation="life",
        task=Task(task_id="t", workflow="block", prompt=os.devnull),
        attempt=1,
        batch_id="b",
        batch_type="train",
        repeat_times=1,
        timeout_s=600,
    )
    with Nursery(settings, tokenizer=TOKENIZER) as nursery:
        await nursery.ready()
        runners = Runners(nursery, FakeEngine(), settings.explorer)
        runners.start()
        blocked = asyncio.create_task(runners.roll_out(order, None))
        await until(lambda: [state.state for state in runners.states()] == ["busy", "idle"])
        await until(lambda: all(state.pid for state in runners.states()))
        sys.stdout.write("runners: " + " ".join(str(state.pid) for state in runners.states()) + "\n")
        sys.stdout.flush()
        try:
            await blocked
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await runners.close()


if __name__ == "__main__":
    run_service(main)
