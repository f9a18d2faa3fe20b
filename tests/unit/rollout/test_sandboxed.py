"""Tools that are given their run's context or sandbox; the sandbox of a run that goes on elsewhere."""

import json
from typing import Any, ClassVar

import pytest

from schemas import Task, Turn
from schemas.codec import decode, encode
from schemas.turn import chain
from tests.support.fakes.turns import turn
from trinity_bus import Conversation, RolloutContext, Sandbox, ToolWorkflow, sandboxed_python
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.tools import PythonTool, ToolError
from trinity_bus.rollout.turns import RunTurns
from trinity_bus.testing import OutOfAnswersError, ScriptedEngine, run_workflow

TASK = Task(task_id="t", workflow="w", prompt="Count.")
COUNTS = """
from pathlib import Path
import random
file = Path("count")
file.write_text(str(int(file.read_text()) + 1 if file.exists() else 1))
print(file.read_text(), random.random())
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def ask(question: str, ctx: RolloutContext) -> str:
    """Ask somebody who knows."""
    return await ctx.chat([{"role": "user", "content": question}], pool="judge")


class Counts(ToolWorkflow):
    """Rewards the count that the sandbox holds when the model has ended."""

    name = "w"
    tools: ClassVar = (sandboxed_python, ask)

    async def reward(self, task: Task, conversation: Conversation) -> float:
        assert conversation.sandbox is not None
        return float(await conversation.sandbox.read_file("count"))


def test_a_model_is_not_told_of_what_the_workflow_gives() -> None:
    tool = PythonTool(sandboxed_python)
    assert tool.schema.function.parameters is not None
    assert list(tool.schema.function.parameters["properties"]) == ["code"]
    assert tool.given == {"box": Sandbox}


async def test_a_tool_has_the_context_of_its_run_and_the_sandbox_that_its_other_calls_have() -> None:
    said = [
        call("sandboxed_python", code=COUNTS),
        call("sandboxed_python", code=COUNTS),
        call("ask", question="?"),
        "2",
    ]
    (rollout,) = await run_workflow(Counts(), TASK, ScriptedEngine(said), {"judge": ScriptedEngine(["So."])})
    assert (rollout.reward, rollout.metrics["tool_calls"], rollout.metrics["tool_errors"]) == (2.0, 3.0, 0.0)


@pytest.mark.parametrize(
    ("code", "shown"), [("print(1)\nraise SystemExit('no')", "1\n\nit ended with status 1: no\n"), ("print(2)", "2\n")]
)
async def test_a_program_says_what_it_prints_and_how_it_failed(code: str, shown: str) -> None:
    async with Sandbox() as box:
        assert await sandboxed_python(code, box) == shown


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.remove('program.py'); os.symlink('/etc/passwd', 'program.py')",
        "import os; os.remove('program.py'); os.mkdir('program.py')",
    ],
)
async def test_a_program_that_spoils_its_place_fails_the_next_call_and_not_the_run(code: str) -> None:
    async with Sandbox() as box:
        assert await sandboxed_python(code, box) == ""
        with pytest.raises(ToolError, match=r"the program cannot be written: 'program\.py'"):
            await sandboxed_python("print(1)", box)


async def test_a_folder_that_cannot_be_entered_fails_the_call_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_command: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with Sandbox() as box:
        monkeypatch.setattr(box, "exec", refuse)
        with pytest.raises(ToolError, match="cannot be entered: Permission denied"):
            await sandboxed_python("print(1)", box)


async def test_the_sandbox_of_a_run_that_goes_on_elsewhere_holds_what_it_held() -> None:
    log: list[Turn] = []

    async def write(completed: Turn) -> None:
        log.append(decode(encode(completed), Turn))

    async def attempt(answers: list[str]) -> tuple[Any, list[str]]:
        done, engine = chain(log), ScriptedEngine(answers)
        ctx = RolloutContext(
            engine=engine,
            tokenizer=engine.tokenizer,
            repeat_times=1,
            turns_of=lambda _: RunTurns(done, lambda n, after, given: turn(n, len(done) + 1, after, given), write),
        )
        try:
            return await Counts().run(TASK, ctx), [one.prompt for one in engine.requests]
        except OutOfAnswersError as error:
            return error, [one.prompt for one in engine.requests]

    program = call("sandboxed_python", code=COUNTS)
    lost, first = await attempt([program, program])
    assert isinstance(lost, TrinityError)
    ((rollout,), second) = await attempt(["two"])
    # The model is told what the first sandbox printed; the second one counts as far.
    assert second == first[2:]
    assert rollout.reward == 2.0
