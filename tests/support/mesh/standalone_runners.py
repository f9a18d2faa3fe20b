"""Starts runners as an explorer's service does, on a FAKE engine, in a process of its own, one of them at work.

``python -m tests.support.mesh.standalone_runners`` prints the processes of its two runners, and waits to be killed.
``... MARKER-BACKWARDS`` has a workflow spy on it, and prints what that found of the secret that its environment has.
"""

import asyncio
import contextlib
import os
import sys

from schemas import Task
from schemas.codec import encode
from tests.support.fakes.engine import TOKENIZER, FakeEngine, FakePools, keep_nothing
from tests.support.fakes.mesh_records import dispatch
from tests.support.mesh.waiting import until
from trinity_bus.config import Settings
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runners.service import Runners, WorkflowRaisedError
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service


async def work(settings: Settings, workflow: str, prompt: str) -> None:
    """Have a runner work. The settings still hold the secret, long after the environment has forgotten it."""
    task = Task(task_id="t", workflow=workflow, prompt=prompt)
    order = dispatch(task=task, attempt=1, repeat_times=1, timeout_s=600)
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        await fork_server.ready()
        runners = Runners(fork_server, FakeEngine(), settings.explorer, FakePools())
        runners.start()
        caring = asyncio.create_task(runners.run())
        working = asyncio.create_task(runners.roll_out(order, encode(order), None, keep=keep_nothing))
        try:
            if workflow == "block":
                await until(lambda: [state.state for state in runners.states()] == ["busy", "idle"])
                await until(lambda: all(state.pid for state in runners.states()))
                say("runners: " + " ".join(str(state.pid) for state in runners.states()))
            await working
        except WorkflowRaisedError as error:
            say(str(error))
        finally:
            caring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runners.close()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(marker: str = "") -> None:
    settings = Settings()
    keep_secrets()
    workflow, prompt = ("spy", f"{os.getpid()} {marker}") if marker else ("block", os.devnull)
    run_service(lambda: work(settings, workflow, prompt))


if __name__ == "__main__":
    main(*sys.argv[1:])
