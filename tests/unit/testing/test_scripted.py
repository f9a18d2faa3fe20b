import re
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_bus import Message, Rollout, RolloutContext, Sampling, SchemaError, SingleRunWorkflow, Task, WorkflowError
from trinity_bus.rollout.workflows import MathWorkflow
from trinity_bus.testing import OutOfAnswersError, ScriptedEngine, run_workflow

ROOT = Path(__file__).parents[3]


def question(**fields: object) -> Task:
    return Task(**{"workflow": "math", "prompt": "1 + 1 =", "answer": "2", **fields})


def test_the_page_for_workflows_holds(tmp_path: Path) -> None:
    for block in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", (ROOT / "docs/workflows.md").read_text(), re.DOTALL):
        (tmp_path / block[1]).write_text(block[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_tasks.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr


async def test_each_response_takes_the_next_answer_and_none_is_made_up() -> None:
    engine = ScriptedEngine(["it is 2", "it is 3"])
    right, wrong = await run_workflow(MathWorkflow(), question(repeat_times=2), engine)
    assert (right.reward, wrong.reward, right.finish_reason) == (1.0, 0.0, "stop")
    assert [(request.prompt, request.n) for request in engine.requests] == [("1 + 1 =", 2)]
    with pytest.raises(OutOfAnswersError, match="no answer is left"):
        await run_workflow(MathWorkflow(), question(), engine)


async def test_an_answer_is_cut_where_the_task_says_and_messages_go_through_a_chat_template() -> None:
    engine = ScriptedEngine(lambda prompt: prompt[::-1])
    (cut,) = await run_workflow(MathWorkflow(), question(sampling=Sampling(max_tokens=3)), engine)
    assert (cut.finish_reason, len(cut.response_token_ids)) == ("length", 3)
    engine = ScriptedEngine(["2"])
    await run_workflow(MathWorkflow(), question(prompt=None, messages=[Message(role="user", content="1 + 1")]), engine)
    assert engine.requests[0].prompt == "user: 1 + 1\nassistant: "


class Wrong(SingleRunWorkflow):
    """Gives what no explorer takes."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        good = {"prompt_token_ids": [1], "response_token_ids": [2], "logprobs": [-1.0], "reward": 1.0}
        return Rollout(**{**good, "versions": [(0, 0)], **self.fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt_token_ids": []}, WorkflowError),
        ({"reward": float("inf")}, WorkflowError),
        ({"logprobs": [float("nan")]}, WorkflowError),
        ({"logprobs": [-1.0, -1.0]}, SchemaError),
    ],
)
async def test_what_an_explorer_refuses_is_refused(fields: dict[str, object], error: type[Exception]) -> None:
    await run_workflow(Wrong(), question(), ScriptedEngine([]))
    with pytest.raises(error):
        await run_workflow(Wrong(**fields), question(), ScriptedEngine([]))
