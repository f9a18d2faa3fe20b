"""Starts runners as an explorer does, on a FAKE engine, one of them blocked; says so, and waits to be killed."""

import asyncio
import contextlib
import os
import sys

from schemas import Task
from schemas.codec import encode
from tests.support.fakes.engine import TOKENIZER, FakeEngine, FakePools, keep_nothing
from tests.support.fakes.mesh_records import dispatch
from tests.support.mesh.waiting import until
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runners.service import Runners
from trinity_bus.runtime.service import run_service


async def main() -> None:
    settings = Settings(
        explorer=ExplorerSettings(runners=2, slots=4, workflow_modules="tests.support.fakes.rogue_workflows")
    )
    task = Task(task_id="t", workflow="block", prompt=os.devnull)
    order = dispatch(task=task, attempt=1, repeat_times=1, timeout_s=600)
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        await fork_server.ready()
        runners = Runners(fork_server, FakeEngine(), settings.explorer, FakePools())
        runners.start()
        blocked = asyncio.create_task(runners.roll_out(order, encode(order), None, keep=keep_nothing))
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
