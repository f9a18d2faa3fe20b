"""Programs as agents: told where the model is, killed with all that they have started."""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from schemas import Task
from trinity_bus.rollout.agents import Outcome, ProgramError, ProgramWorkflow
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.testing import ScriptedEngine, run_workflow

ASKS = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = {"model": "policy", "messages": [{"role": "user", "content": task["prompt"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""
LEAVES = """
import os, subprocess, sys, time
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(sys.argv[1], "w").write(str(left.pid))
time.sleep(float(sys.argv[2]))
"""


class Program(ProgramWorkflow):
    name = "program"
    timeout_s: ClassVar = 20.0

    def __init__(self, *arguments: str, timeout_s: float = 20.0) -> None:
        self.command = [sys.executable, "-I", "-S", "-c", *arguments]  # type: ignore[misc]
        self.timeout_s = timeout_s  # type: ignore[misc]

    async def judge(self, task: Task, printed: str, ctx: RolloutContext) -> Outcome:
        return float(printed.strip() == task.answer), {"printed": float(len(printed))}


async def run(workflow: Program, *answers: str) -> Any:
    task = Task(workflow="program", prompt="6 * 7?", answer="42")
    (rollout,) = await run_workflow(workflow, task, ScriptedEngine(answers))
    return rollout


async def test_a_program_is_told_where_the_model_is_and_judged_by_what_it_prints() -> None:
    rollout = await run(Program(ASKS), "42")
    assert (rollout.reward, rollout.metrics["printed"], rollout.metrics["turns"]) == (1.0, 3.0, 1.0)
    assert "".join(map(chr, rollout.response_token_ids)) == "42\0"


async def test_one_that_fails_is_its_runs_failure_with_what_it_said() -> None:
    with pytest.raises(ProgramError, match=r"(?s)ended with status 1: .*ZeroDivisionError"):
        await run(Program("1 / 0"))


@pytest.mark.parametrize(("lives_s", "ends"), [("600", "had not ended after 4 s, and was killed"), ("0", "")])
async def test_nothing_that_it_has_started_is_left_alive(tmp_path: Path, lives_s: str, ends: str) -> None:
    note = tmp_path / "pid"
    # It asks the model nothing, which fails its run too.
    with pytest.raises(ProgramError if ends else Exception, match=ends or "asked the model nothing"):
        await run(Program(LEAVES, str(note), lives_s, timeout_s=4.0 if ends else 20.0))
    assert not psutil.pid_exists(int(note.read_text()))


async def test_a_program_that_there_is_not_is_named() -> None:
    workflow = Program("")
    workflow.command = ["/no/such/program"]  # type: ignore[misc]
    with pytest.raises(ProgramError, match=r"/no/such/program ended with status 127: cannot run"):
        await run(workflow)
    assert "OPENAI_API_KEY" not in os.environ
