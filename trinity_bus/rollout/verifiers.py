"""Environments of the package ``verifiers`` as workflows; it is no part of this project, and is installed beside it.

A module that explorers import says which of them there are, and under which names:

    environment("wordle")                        # the workflow wordle: verifiers.load_environment("wordle")
    environment("sums", "acme-sums", hard=True)  # the workflow sums: load_environment("acme-sums", hard=True)

A task names a row of the environment's own data set (``data={"row": 7}``), of that for evaluation where the batch is
one: what its rubric needs to know does not travel. The model is reached over the run's endpoint, so the tokens that are
trained on are those that were drawn.

Failures: an environment that cannot be loaded is told when its module is imported; a rollout that has failed is the
failure of its run.
"""

from typing import Any

from schemas.task import Task
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.agents import AgentWorkflow, Outcome
from trinity_bus.rollout.endpoint import Endpoint
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.workflow import WorkflowError


class VerifiersError(TrinityError, RuntimeError):
    pass


class _VerifiersWorkflow(AgentWorkflow):
    env_id: str
    env: Any

    async def act(self, task: Task, model: Endpoint) -> Outcome:
        from openai import AsyncOpenAI
        from verifiers import OpenAIChatCompletionsClient

        row = self._row(task)
        async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as api:
            said = await self.env.run_rollout(row, OpenAIChatCompletionsClient(api), "policy", {})
        if said.get("error"):
            raise VerifiersError(f"environment {self.env_id!r}: {said['error']}")
        metrics = said.get("metrics") or {}
        return float(said["reward"]), {name: float(value) for name, value in metrics.items()}

    def _row(self, task: Task) -> Any:
        rows = self.env.get_eval_dataset() if task.batch_type == "eval" else self.env.get_dataset()
        number = task.data.get("row")
        if not isinstance(number, int) or not 0 <= number < len(rows):
            raise WorkflowError(
                f"task {task.task_id!r} names row {number!r} of environment {self.env_id!r}, which has {len(rows)}"
            )
        return rows[number]


def environment(name: str, env_id: str | None = None, **options: Any) -> None:
    """Load an environment, and register it as a workflow.

    Once, before runners are forked: what it has loaded is theirs, and one that cannot be loaded is told at the start.
    ``env_id``: as ``verifiers`` knows it; unset: the same. ``options`` are given to ``verifiers.load_environment``.
    """
    from verifiers import load_environment

    loaded = load_environment(env_id or name, **options)
    given = {"env_id": env_id or name, "env": loaded, "__module__": __name__}
    register(name)(type(f"Verifiers_{name}", (_VerifiersWorkflow,), given))
