"""Runners as real processes, on a FAKE engine: user code does its worst, and only its own attempt fails."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas import Dispatch, ExperienceGroup, SampledWith, Task, Turn
from schemas.codec import decode, encode
from tests.support.fakes.engine import TOKENIZER, FakeEngine, FakePools, keep_nothing
from tests.support.fakes.mesh_records import dispatch
from tests.support.mesh.processes import assert_all_gone, family_of
from tests.support.mesh.waiting import until
from trinity_bus.config import ExplorerSettings, Settings, TelemetrySettings
from trinity_bus.errors import ConfigError
from trinity_bus.inference.errors import RequestRefusedError
from trinity_bus.runners import control
from trinity_bus.runners.control import LoadWorkflows
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runners.messages import RunDone
from trinity_bus.runners.service import RunnerDiedError, Runners, WorkflowRaisedError
from trinity_bus.telemetry import load_spans

pytestmark = pytest.mark.integration

MODULE = "tests.support.fakes.rogue_workflows"
LIMIT_S = 200


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    settings = Settings(explorer=ExplorerSettings(workflow_modules=MODULE))
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        yield fork_server


def order(workflow: str, task_id: str = "t", *, prompt: str = "6*7=", repeat_times: int = 1) -> Dispatch:
    task = Task(task_id=task_id, workflow=workflow, prompt=prompt, answer="42")
    return dispatch(task=task, attempt=1, repeat_times=repeat_times, timeout_s=600)


def rewards(result: RunDone) -> list[float]:
    found: list[float] = decode(result.group, ExperienceGroup).rewards.tolist()
    return found


class Rig:
    """Runners, their engine, and attempts at tasks."""

    def __init__(self, runners: Runners, engine: FakeEngine) -> None:
        self.runners = runners
        self.engine = engine

    def begin(self, workflow: str, task_id: str = "t", **changes: Any) -> asyncio.Task[RunDone]:
        return asyncio.create_task(self.roll_out(order(workflow, task_id, **changes)))

    async def roll_out(self, order: Dispatch, traceparent: str | None = None) -> RunDone:
        return await self.runners.roll_out(order, encode(order), traceparent, keep=keep_nothing)

    async def innocents(self, count: int = 2) -> list[asyncio.Task[RunDone]]:
        """Attempts that wait for the engine, in the same runner as whatever comes next."""
        self.engine.open.clear()
        begun = [self.begin("math", f"innocent-{i}") for i in range(count)]
        await until(lambda: self.engine.waiting == count)
        return begun

    async def acquit(self, innocents: list[asyncio.Task[RunDone]]) -> None:
        """They lose nothing but time."""
        self.engine.open.set()
        for one in await asyncio.gather(*innocents):
            assert rewards(one) == [1.0]

    async def pids(self) -> list[int]:
        """Of all runners, once the fork server has told them: a runner may ask the engine before that."""
        await until(lambda: all(state.pid for state in self.runners.states()))
        return [state.pid for state in self.runners.states()]

    async def until_there_is_one(self) -> None:
        await until(lambda: len(self.runners.states()) == 1)


@asynccontextmanager
async def rig(fork_server: ForkServer, **changes: Any) -> AsyncIterator[Rig]:
    settings = ExplorerSettings(**({"slots": 4} | changes))
    await fork_server.ready()
    engine = FakeEngine()
    runners = Runners(fork_server, engine, settings, FakePools())
    runners.start()
    caring = asyncio.create_task(runners.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            yield Rig(runners, engine)
    finally:
        caring.cancel()
        await runners.close()
        assert not runners.fatal.done()


@pytest.mark.parametrize(
    ("workflow", "how", "settings"),
    [
        ("exit", r"^its runner ended with status 3$", {}),
        ("segfault", r"^its runner was ended by SIGSEGV$", {}),
        ("block", r"^its runner was ended by SIGABRT, because it was stuck", {"runner_stuck_s": 3}),
        (
            "eat",
            r"^its runner was ended by SIGKILL, because it used \d+ MiB of memory",
            {"runner_max_rss_mib": 200, "runner_stuck_s": 5},
        ),
        ("babble", r"because it broke the protocol: a frame of 4294967295 bytes", {}),
    ],
)
async def test_one_that_kills_its_runner_takes_nobody_along(
    fork_server: ForkServer, workflow: str, how: str, settings: dict[str, Any]
) -> None:
    async with rig(fork_server, **settings) as all_of_it:
        innocents = await all_of_it.innocents()
        culprit = all_of_it.begin(workflow, "culprit", prompt=os.devnull)
        with pytest.raises(RunnerDiedError, match=how):
            await culprit
        await all_of_it.acquit(innocents)
        (state,) = [state for state in all_of_it.runners.states() if state.runner == "explorer-0/0"]
        assert state.restarts >= 1


async def test_a_runner_killed_from_outside_costs_nobody_an_attempt(fork_server: ForkServer) -> None:
    async with rig(fork_server) as all_of_it:
        innocents = await all_of_it.innocents(3)
        (pid,) = await all_of_it.pids()
        os.kill(pid, signal.SIGKILL)
        # Their requests are dropped, and asked again, each from a runner of its own.
        await until(lambda: all_of_it.engine.aborted == 3 and all_of_it.engine.waiting == 3)
        assert len(await all_of_it.pids()) == 4
        await all_of_it.acquit(innocents)
        await all_of_it.until_there_is_one()


async def test_what_a_dead_runner_has_started_dies_with_it(fork_server: ForkServer, tmp_path: Path) -> None:
    left = tmp_path / "left"

    async with rig(fork_server) as all_of_it:
        with pytest.raises(RunnerDiedError):
            await all_of_it.begin("exit", prompt=str(left))
    with contextlib.suppress(psutil.NoSuchProcess):
        # It has been killed; when it is gone is the machine's affair.
        assert_all_gone([psutil.Process(int(left.read_text()))])


async def test_a_blocked_runner_keeps_nobody_waiting_who_is_out_of_time(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    async with rig(fork_server, cancel_grace_s=0.5, runner_stuck_s=600) as all_of_it:
        blocking = all_of_it.begin("block", prompt=str(tmp_path / "said"))
        await until((tmp_path / "said").exists)
        (before,) = all_of_it.runners.states()
        blocking.cancel()
        # At once, whatever the workflow does.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert blocking.cancelled()
        assert rewards(await all_of_it.begin("math")) == [1.0]
        (after,) = all_of_it.runners.states()
        assert (before.restarts, after.restarts) == (0, 1)


async def test_one_that_ignores_its_cancellation_loses_its_runner_and_the_others_begin_again(
    fork_server: ForkServer,
) -> None:
    async with rig(fork_server, cancel_grace_s=0.5) as all_of_it:
        innocents = await all_of_it.innocents()
        ignoring = all_of_it.begin("ignore", "ignoring")
        await until(lambda: any("turn" in value for value in all_of_it.runners.states()[0].values))
        ignoring.cancel()
        await until(lambda: all_of_it.engine.aborted == 2 and all_of_it.engine.waiting == 2)
        # Together: who held on is known.
        assert len(await all_of_it.pids()) == 1
        await all_of_it.acquit(innocents)


async def test_a_cancelled_attempt_is_aborted_in_the_engine_and_its_runner_goes_on(fork_server: ForkServer) -> None:
    async with rig(fork_server) as all_of_it:
        (one,) = await all_of_it.innocents(1)
        before = await all_of_it.pids()
        one.cancel()
        await until(lambda: all_of_it.engine.aborted == 1)
        all_of_it.engine.open.set()
        await all_of_it.begin("math", "next")
        assert await all_of_it.pids() == before


async def test_a_runner_in_which_a_call_hangs_in_a_thread_is_replaced_and_ended(fork_server: ForkServer) -> None:
    async with rig(fork_server, cancel_grace_s=0.5) as all_of_it:
        (before,) = await all_of_it.pids()
        with pytest.raises(WorkflowRaisedError, match="ToolTimeoutError: it hangs"):
            await all_of_it.begin("cling")
        await until(lambda: before not in [state.pid for state in all_of_it.runners.states()])
        await until(lambda: not psutil.pid_exists(before))
        assert rewards(await all_of_it.begin("math")) == [1.0]


async def test_what_a_workflow_raises_is_its_attempts_failure_even_an_exit(fork_server: ForkServer) -> None:
    async with rig(fork_server) as all_of_it:
        before = all_of_it.runners.states()[0].runner
        for workflow, error in (("leave", "SystemExit: enough"), ("unheard-of", "UnknownWorkflow: unknown")):
            with pytest.raises(WorkflowRaisedError, match=error):
                await all_of_it.begin(workflow)
        (state,) = all_of_it.runners.states()
        assert (state.runner, state.restarts, state.completed) == (before, 0, 2)


@pytest.mark.parametrize("where", ["error", "metric", "finish_reason"])
async def test_half_a_character_is_the_attempts_failure_at_once(fork_server: ForkServer, where: str) -> None:
    async with rig(fork_server, runner_stuck_s=600) as all_of_it:
        with pytest.raises(WorkflowRaisedError) as raised:
            await asyncio.wait_for(all_of_it.begin("surrogate", prompt=where), LIMIT_S)
        assert r"\ud83d" in str(raised.value)
        assert [state.restarts for state in all_of_it.runners.states()] == [0]
        # In the error of some runs it costs the others nothing.
        result = await asyncio.wait_for(all_of_it.begin("surrogate", prompt="partial", repeat_times=2), LIMIT_S)
        assert (len(rewards(result)), result.error) == (1, r"ValueError: half of it: \ud83d")


async def test_a_refusal_of_the_engine_reaches_the_workflow_as_what_it_is(fork_server: ForkServer) -> None:
    async with rig(fork_server) as all_of_it:

        async def refuse(*_: Any) -> Any:
            raise RequestRefusedError("the prompt is too long: \ud83d")

        all_of_it.engine.generate = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(WorkflowRaisedError, match=r"^RequestRefusedError: the prompt is too long: \\ud83d$"):
            await all_of_it.begin("math")


async def test_the_last_turn_of_a_run_that_fails_is_kept_before_its_failure_is_told(fork_server: ForkServer) -> None:
    durable, kept = asyncio.Event(), []

    async def keep(turn: bytes) -> None:
        await durable.wait()
        kept.append(decode(turn, Turn))

    async with rig(fork_server) as all_of_it:
        given = order("turn-and-fail")
        attempt = asyncio.create_task(all_of_it.runners.roll_out(given, encode(given), None, keep=keep))
        await until(lambda: any("turn" in value for value in all_of_it.runners.states()[0].values))
        assert not attempt.done()
        durable.set()
        with pytest.raises(WorkflowRaisedError, match="broke off"):
            await attempt
    assert [(one.number, len(one.answers)) for one in kept] == [(0, 1)]


async def test_the_states_of_runners_tell_what_is_worked_on_and_what_workflows_say(fork_server: ForkServer) -> None:
    async with rig(fork_server, runners=2, runner_stuck_s=600) as all_of_it:
        all_of_it.engine.open.clear()
        telling = all_of_it.begin("tell")
        # What it says at its start and last is known when it is heard of, and no later.
        await until(lambda: all_of_it.engine.waiting == 1)
        busy, idle = all_of_it.runners.states()
        assert (busy.runner, busy.state, idle.runner) == ("explorer-0/0", "busy", "explorer-0/1")
        assert [(one.task_id, one.attempt) for one in busy.running] == [("t", 1)]
        (values,) = busy.values
        assert (values["workflow_id"], values["model_version"], values["turn"]) == ("b/t/0", 0, 7)
        assert values["running_time"] >= 0
        assert "terminate_time" not in values
        all_of_it.engine.open.set()
        await telling
        ended, _ = all_of_it.runners.states()
        assert (ended.state, ended.running, ended.completed) == ("idle", [], 1)
        assert ended.values[0]["terminate_time"] >= ended.values[0]["begin_time"]
        await all_of_it.begin("last-words", "last")
        assert [state.values[-1]["turn"] for state in all_of_it.runners.states() if state.values] == [2]


async def test_one_trace_leads_through_a_workflows_own_spans_into_the_engine(tmp_path: Path) -> None:
    settings = Settings(
        explorer=ExplorerSettings(workflow_modules=MODULE), telemetry=TelemetrySettings(run_dir=tmp_path)
    )
    rollout = f"00-{1:032x}-{2:016x}-01"
    asked: list[str | None] = []

    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        async with rig(fork_server) as all_of_it:
            generate = all_of_it.engine.generate

            async def note(prompt: Any, sampling: Any, n: int, traceparent: str | None) -> Any:
                asked.append(traceparent)
                return await generate(prompt, sampling, n)

            all_of_it.engine.generate = note  # type: ignore[method-assign, assignment]
            await all_of_it.roll_out(order("math", "plain"), rollout)
            await all_of_it.roll_out(order("tell", "telling"), rollout)
            # Spans are written now and then; one that is dismissed has little time for them.
            await until(lambda: bool(load_spans(tmp_path)))
    (span,) = load_spans(tmp_path)
    assert (span.name, span.trace_id, span.parent_id) == ("think", f"{1:032x}", f"{2:016x}")
    assert asked == [rollout, f"00-{1:032x}-{span.span_id}-01"]


async def test_a_module_that_cannot_be_imported_says_which_setting_to_mend() -> None:
    settings = Settings(explorer=ExplorerSettings(workflow_modules="no_such_module_of_mine"))
    told = "No module named 'no_such_module_of_mine'; see TRINITY_BUS_EXPLORER__WORKFL"
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server, pytest.raises(ConfigError, match=told):
        await fork_server.ready()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_runner_outlives_its_explorer(number: signal.Signals) -> None:
    own = {"RUNNERS": "2", "SLOTS": "4", "WORKFLOW_MODULES": "tests.support.fakes.rogue_workflows"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.mesh.standalone_runners"],
        env=os.environ | {f"TRINITY_BUS_EXPLORER__{name}": value for name, value in own.items()},
        stdout=subprocess.PIPE,
        text=True,
    ) as explorer:
        assert explorer.stdout is not None
        said = explorer.stdout.readline().split()
        family = family_of(explorer.pid)
        # The explorer, the guard, the fork server and its two runners, one of which is blocked.
        assert {int(pid) for pid in said[1:]} < {process.pid for process in family}
        assert len(family) == 5
        explorer.send_signal(number)
    assert_all_gone(family)


async def test_a_fork_server_that_dies_takes_its_runners_along_and_ends_the_explorer() -> None:
    with ForkServer(Settings(), tokenizer=TOKENIZER) as fork_server:
        await fork_server.ready()
        runners = Runners(fork_server, FakeEngine(), ExplorerSettings(), FakePools())
        runners.start()
        await until(lambda: runners.states()[0].pid != 0)
        (process,) = [psutil.Process(state.pid) for state in runners.states()]
        fork_server_process = process.parent()
        assert fork_server_process is not None
        fork_server_process.kill()
        with pytest.raises(Exception, match="the process that starts runners is gone"):
            await asyncio.wait_for(runners.fatal, LIMIT_S)
        assert_all_gone([process])
        await runners.close()


def test_a_fork_server_whose_explorer_is_gone_before_it_is_loaded_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    load = LoadWorkflows(
        tokenizer=TOKENIZER,
        model_path="",
        model="policy",
        sampling=b"{}",
        modules=[],
        explorer="e",
        namespace="n",
        telemetry=b"{}",
    )
    ours.send(control.TO_FORK_SERVER.encode(load))
    command = [sys.executable, "-m", "trinity_bus.runners.fork_server_main", str(theirs.fileno())]
    with theirs:
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        fork_server = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
    ours.close()
    _, said = fork_server.communicate(timeout=60)
    assert (fork_server.returncode, said) == (0, "")


async def test_a_runner_says_of_each_sample_how_it_was_drawn(fork_server: ForkServer) -> None:
    async with rig(fork_server, temperature=0.75) as running:
        plain = await running.begin("math")
        group = decode(plain.group, ExperienceGroup)
    assert [one.sampling for one in group.samples()] == [SampledWith(1.0, 1, 0, 0)]
