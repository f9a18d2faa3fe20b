"""Programs as agents: any executable, in any language, that speaks to a model over OpenAI's API.

::

    run --> an endpoint of its own --> the program --ended--> reward
                                          '--too late, or the attempt is over--> killed, with all that it has started

It finds where the model is in its environment (``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, which OpenAI's clients read by
themselves), and reads its task, as JSON, from standard input.

Failures: a program that cannot be started, ends with another status than 0, or takes too long is the failure of its run
(``ProgramError``), with the last of what it wrote to standard error.
"""

import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from schemas.task import Task
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.agents import AgentWorkflow, Outcome
from trinity_bus.rollout.endpoint import Endpoint
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.runtime.execution import execute, guarded, kill_family

_SHOWN: Final = 500


class ProgramError(TrinityError, RuntimeError):
    pass


class ProgramWorkflow(AgentWorkflow):
    """A workflow whose runs are done by a program. Register the subclass, with its ``command``."""

    command: ClassVar[Sequence[str]]  # program and arguments; no shell is involved
    timeout_s: ClassVar[float] = 600.0  # of one run
    environment: ClassVar[Mapping[str, str]] = {}  # more variables for it, beside those of the runner
    output_bytes: ClassVar[int] = 1 << 20  # how much is kept of what it prints

    @abstractmethod
    async def judge(self, task: Task, printed: str, ctx: RolloutContext) -> Outcome:
        """Return what a run was worth, by what the program has written to standard output."""

    async def act(self, task: Task, model: Endpoint) -> Outcome:
        environment = {
            **os.environ,
            **self.environment,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": model.api_key,
        }
        async with guarded(self.command) as (command, descriptors):
            done = await execute(
                command,
                stdin=json.dumps(task.model_dump(mode="json", exclude_none=True)).encode(),
                wall_s=self.timeout_s,
                output_bytes=self.output_bytes,
                env=environment,
                pass_fds=descriptors,
                stop=kill_family,
            )
        if done.timed_out:
            raise ProgramError(f"{self.command[0]} had not ended after {self.timeout_s:g} s, and was killed")
        if done.returncode != 0:
            said = done.stderr.strip()[-_SHOWN:]
            raise ProgramError(f"{self.command[0]} ended with status {done.returncode}: {said}")
        return await self.judge(task, done.stdout, model.ctx)
