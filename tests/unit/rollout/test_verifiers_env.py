"""Environments of ``verifiers``, as they really are: skipped where the package is not installed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from schemas import Task
from trinity_bus.rollout.workflow import WorkflowError
from trinity_bus.testing import OutOfAnswersError, ScriptedEngine, run_workflow

pytest.importorskip("verifiers.v1", reason="not run: verifiers is not installed")

from trinity_bus.rollout.verifiers_env import VerifiersError, VerifiersWorkflow

pytestmark = pytest.mark.filterwarnings("ignore")


class Sums(VerifiersWorkflow):
    name = "sums"
    environment: ClassVar = {"taskset": {"id": "verifiers-sums"}, "agent": {"runtime": {"type": "subprocess"}}}


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sums]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support" / "servers"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield Sums()
    assert not [name for name in os.environ if name.startswith("TRINITY_BUS_RUN_")], "no key stays"


async def play(sums: Sums, task: Task, *said: str) -> Any:
    engine = ScriptedEngine(said)
    (rollout,) = await run_workflow(sums, task, engine)
    return rollout, engine


async def test_an_episode_asks_this_model_and_its_reward_is_the_samples(sums: Sums) -> None:
    tasks = list(sums.tasks())
    assert [task.prompt for task in tasks] == ["0 + 1?", "1 + 1?", "2 + 1?"]
    rollout, engine = await play(sums, tasks[2], "4", "3")
    assert engine.requests[0].prompt == "user: 2 + 1?\nassistant: "
    assert engine.requests[1].prompt.endswith("user: Sure?\nassistant: ")
    assert (rollout.reward, rollout.metrics["reward/right"], rollout.metrics["asked"]) == (2.0, 2.0, 2.0)
    assert "".join(chr(token) for token, drawn in zip(rollout.response_token_ids, rollout.mask, strict=True) if drawn)
    rollout, _ = await play(sums, tasks[0], "7", "8")
    assert rollout.reward == 0.0
    # Its runs do not disturb each other.
    engine = ScriptedEngine(lambda prompt: "2")
    rollouts = await run_workflow(sums, tasks[1].model_copy(update={"repeat_times": 4}), engine)
    assert [one.reward for one in rollouts] == [2.0] * 4


async def test_an_episode_that_fails_is_the_failure_of_its_run_and_never_a_reward_of_zero(sums: Sums) -> None:
    task = next(sums.tasks())
    with pytest.raises(VerifiersError, match=r"has failed: .*the judge is broken"):
        await play(sums, task, "break", "break")
    with pytest.raises(OutOfAnswersError):
        await play(sums, task)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"number": 7, "hash": "x"}, "number 7 of 'verifiers-sums' is none here"),
        ({"number": 1 << 62, "hash": "x"}, "is none here"),
        ({"number": -1, "hash": "x"}, "is none here"),
        ({"number": 0, "hash": "x"}, "number 0 of 'verifiers-sums' is another here"),
        ({"number": "0"}, "does not say which task"),
        (3, "does not say which task"),
    ],
)
async def test_a_task_of_another_taskset_is_refused(sums: Sums, named: Any, why: str) -> None:
    with pytest.raises(WorkflowError, match=why):
        await play(sums, Task(workflow="sums", data={"verifiers": named}), "1")
