"""Tools that are given their run's context or sandbox; the sandbox of a run that goes on elsewhere."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from schemas import Task
from tests.support.fakes.turns import TurnLog
from trinity_bus import Conversation, RolloutContext, Sandbox, ToolWorkflow, sandboxed_python
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.conversations import Filling, digest_of
from trinity_bus.rollout.tools import PythonTool, ToolError
from trinity_bus.sandbox import KeptPlaces, SandboxPlace
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
async def test_a_program_that_spoils_its_place_fails_the_next_call_and_not_the_run(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_command: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with Sandbox() as box:
        with monkeypatch.context() as patch:
            patch.setattr(box, "exec", refuse)
            with pytest.raises(ToolError, match="cannot be entered: Permission denied"):
                await sandboxed_python("print(1)", box)
        assert await sandboxed_python(code, box) == ""
        with pytest.raises(ToolError, match=r"the program cannot be written: 'program\.py'"):
            await sandboxed_python("print(1)", box)


PROGRAM = call("sandboxed_python", code=COUNTS)


class Attempts:
    """Attempts at one run, each with what the engine says in it; their turns, and their machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.log = TurnLog()
        self.calls = 0

    async def attempt(self, answers: list[str], machine: str) -> tuple[Any, list[str]]:
        """What comes of one, and what the engine was asked."""
        (self._folder / machine).mkdir(exist_ok=True)
        self._monkeypatch.setattr("tempfile.tempdir", str(self._folder / machine))
        engine = ScriptedEngine(answers)
        ctx = self.log.context(engine, places=KeptPlaces("mesh", "t"))
        real = Sandbox.exec

        async def counted(box: Sandbox, *args: Any, **options: Any) -> Any:
            self.calls += 1
            return await real(box, *args, **options)

        with self._monkeypatch.context() as patch:
            patch.setattr(Sandbox, "exec", counted)
            try:
                return await Counts().run(TASK, ctx), [one.prompt for one in engine.requests]
            except OutOfAnswersError as error:
                return error, [one.prompt for one in engine.requests]


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(tmp_path, monkeypatch)


@pytest.mark.parametrize(("machine", "again"), [("here", 0), ("elsewhere", 2)])
async def test_the_sandbox_of_a_run_that_goes_on_is_as_it_was(attempts: Attempts, machine: str, again: int) -> None:
    lost, first = await attempts.attempt([PROGRAM, PROGRAM], "here")
    assert isinstance(lost, TrinityError)
    ((rollout,), second) = await attempts.attempt(["two"], machine)
    # The model is told what the first sandbox printed.
    assert second == first[2:]
    assert rollout.reward == 2.0
    assert attempts.calls == 2 + again


@pytest.mark.parametrize(
    ("before", "lost", "said", "reward"),
    [
        # It is as another attempt has left it, and less far: what is there is there, what is not is made.
        ([[PROGRAM], "elsewhere"], 0, ["two"], 2.0),
        # Of a call that was not durable it keeps nothing: the model was told of one.
        ([[PROGRAM, PROGRAM]], 1, ["one"], 1.0),
        # A run that begins anew has an empty one.
        ([[PROGRAM]], 1, [PROGRAM, "one"], 1.0),
    ],
)
async def test_a_sandbox_is_as_after_the_calls_that_are_durable(
    attempts: Attempts, before: list[Any], lost: int, said: list[str], reward: float
) -> None:
    first, *further = before
    await attempts.attempt(first, "here")
    for machine in further:
        await attempts.attempt([PROGRAM], machine)
    del attempts.log.turns[len(attempts.log.turns) - lost :]
    calls = attempts.calls
    ((rollout,), _) = await attempts.attempt(said, "here")
    assert rollout.reward == reward
    assert attempts.calls == calls + 1


async def test_a_sandbox_keeps_nothing_of_a_call_cut_off(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    await attempts.attempt([PROGRAM], "here")

    def dies(_filling: Filling, _name: str, _arguments: object) -> None:
        raise OSError("killed when its program had run")

    with monkeypatch.context() as patch:
        patch.setattr(Filling, "note", dies)
        with pytest.raises(OSError, match="killed"):
            await attempts.attempt([PROGRAM], "here")
    ((rollout,), _) = await attempts.attempt(["one"], "here")
    assert rollout.reward == 1.0
    assert attempts.calls == 2 + 1


@pytest.mark.parametrize(
    "step",
    ["pathlib.Path.rename", "pathlib.Path.mkdir", "pathlib.Path.unlink", "trinity_bus.sandbox.place.remove_tree"],
)
def test_an_emptying_that_was_cut_off_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = SandboxPlace.claim("run")
    Filling(place, {}).note("tool", {})
    (place.files / "left").touch()

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(step, dies)
        with pytest.raises(KeyboardInterrupt):
            Filling(place, {})
    place.release()
    found = SandboxPlace.claim("run")
    Filling(found, {digest_of("tool", {}): 1})
    assert found.path == place.path
    assert (found.calls(), list(found.files.iterdir())) == ([], [])


def test_a_sandbox_that_went_another_way_is_filled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = SandboxPlace.make()
    before = Filling(place, {})
    for argument in (1, 2, 3):
        before.note("tool", {"at": argument})
    after = Filling(place, {digest_of("tool", {"at": argument}): 1 for argument in (1, 2, 3, 7)})
    assert after.missing("tool", {"at": 1}) == []
    assert after.missing("tool", {"at": 7}) == [("tool", {"at": 1}), ("tool", {"at": 7})]
    assert place.calls() == []
    after.note("tool", {"at": 1})
    after.note("tool", {"at": 7})
    assert after.missing("tool", {"at": 3}) == [("tool", {"at": 3})]
    assert len(place.calls()) == 2
    place.remove()
