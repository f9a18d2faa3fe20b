"""Starts runners as an explorer's service does, on a FAKE engine, and has a workflow spy on it: prints what that found.

``python -m tests.support.faults.secret_keeper MARKER-BACKWARDS``: the secret itself comes with the environment.
"""

import asyncio
import os
import sys

from schemas import Task
from schemas.codec import encode
from tests.support.fakes.engine import TOKENIZER, FakeEngine, FakePools, keep_nothing
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.config import Settings
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runners.service import Runners, WorkflowRaisedError
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service


async def spied_upon(settings: Settings) -> None:
    task = Task(task_id="t", workflow="spy", prompt=f"{os.getpid()} {sys.argv[1]}")
    order = dispatch(task=task, attempt=1, repeat_times=1, timeout_s=600)
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        await fork_server.ready()
        runners = Runners(fork_server, FakeEngine(), settings.explorer, FakePools())
        runners.start()
        caring = asyncio.create_task(runners.run())
        try:
            await runners.roll_out(order, encode(order), None, keep=keep_nothing)
        except WorkflowRaisedError as error:
            sys.stdout.write(str(error) + "\n")
        finally:
            caring.cancel()
            await runners.close()


def main() -> None:
    settings = Settings()
    # A service still has it, long after the environment has forgotten it.
    password = settings.kafka.sasl_password
    assert password is not None
    keep_secrets()
    run_service(lambda: spied_upon(settings))
    assert password.get_secret_value()


if __name__ == "__main__":
    main()
