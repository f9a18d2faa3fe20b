"""The explorer over a real broker, on a FAKE engine; the test plays the coordinator."""

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from schemas import (
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    PartialResponses,
    RolloutFinished,
    RunnersReport,
    Sampling,
    Task,
    Turn,
    WeightsSynced,
)
from schemas.topics import EXPERIENCES, EXPLORER_DEAD_LETTERS, TURNS
from tests.integration.explorer.explorers import (
    LIMIT_S,
    MODULES,
    NAME,
    Mesh,
    announcement,
    cancel,
    dispatch,
    explored,
    exploring,
    mesh_of,
    process_of,
)
from tests.support.fakes.engine import TOKENIZER, FakeEngine
from tests.support.fakes.explorer import CountingEngine
from tests.support.mesh.mesh import Mesh as Coordinated
from tests.support.mesh.mesh import send_tasks
from tests.support.mesh.processes import is_alive
from tests.support.mesh.records import record_of, take
from tests.support.mesh.waiting import until
from trinity_bus.chat.wire import tokens_of
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.service import first_error
from trinity_bus.sandbox import KeptPlaces
from trinity_bus.weights.errors import WeightTransferError

pytestmark = pytest.mark.integration


async def test_a_result_is_never_visible_before_its_experiences(alone: Mesh) -> None:
    for i in range(40):
        await alone.send(dispatch(alone.incarnation, f"t{i}"))
    for _ in range(40):
        result = await alone.event(RolloutFinished)
        assert result.status == "completed"
        assert result.experience is not None
        # Readable now, not soon.
        (received,) = await alone.bus.fetch(EXPERIENCES, [result.experience])
        group = record_of(received)
        assert (group.task_id, group.attempt, len(group)) == (result.task_id, 1, 2)
        assert [sample.reward for sample in group.samples()] == [1.0, 1.0]
        assert (group.explorer, group.incarnation, group.model) == (NAME, alone.incarnation, "policy")
    assert alone.engine.most_waiting <= alone.settings.explorer.slots


async def test_what_a_crowded_engine_has_no_room_for_waits_on_the_log(
    kafka: KafkaSettings, fork_server: ForkServer, tmp_path: Path
) -> None:
    stack, engine = Coordinated(kafka, tmp_path), FakeEngine()
    engine.load = EngineLoad(kv_usage=1.0, running=1, waiting=3, preempted=0, version=0)
    settings = Settings(kafka=stack.kafka, explorer=ExplorerSettings(name=NAME, slots=4, heartbeat_s=0.2, drain_s=0.2))
    async with mesh_of(settings) as mesh, exploring(settings, engine, fork_server):
        with stack.coordinator(max_staleness=100):
            await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "ready" and beat.slots == 1)
            # Who has counted what an explorer did later has read this heartbeat of it.
            await send_tasks(mesh._producer, 4, "first")
            await until(lambda: "is finalized: 4 of 4" in stack.log())
            engine.most_waiting, mesh.seen = 0, []
            await send_tasks(mesh._producer, 8)
            for _ in range(8):
                await mesh.event(RolloutFinished, lambda done: done.task_id.startswith("task-"))
            assert engine.most_waiting == 1
            # With room again, and all of it used, it asks for more.
            engine.open.clear()
            engine.load = dataclasses.replace(engine.load, kv_usage=0.1, waiting=0)
            await send_tasks(mesh._producer, 4, "more")
            await mesh.event(ExplorerHeartbeat, lambda beat: beat.slots >= 2)
            await until(lambda: engine.waiting >= 2, LIMIT_S)


async def test_eval_batches_publish_no_experiences(alone: Mesh) -> None:
    await alone.send(dispatch(alone.incarnation, batch_type="eval", batch_id="0/held-out"))
    result = await alone.event(RolloutFinished)
    assert (result.status, result.experience, result.samples) == ("completed", None, 2)
    assert [metrics["reward"] for metrics in result.metrics] == [1.0, 1.0]
    assert await alone.experiences() == []
    assert alone.engine.trained == [False]
    await alone.send(dispatch(alone.incarnation, "t-1"))
    await alone.event(RolloutFinished)
    assert alone.engine.trained == [False, True]


async def test_a_workflow_that_asks_no_engine_can_be_trained_on_and_gives_several_experiences_of_a_run(
    alone: Mesh,
) -> None:
    task = Task(task_id="t", workflow="steps", prompt="x")
    await alone.send(dispatch(alone.incarnation, task=task, run_id_base=2))
    finished = await alone.event(RolloutFinished)
    assert (finished.status, finished.completed_runs, finished.samples) == ("completed", 2, 4)
    assert (finished.version_min, finished.version_max) == (alone.engine.model_version, alone.engine.model_version)
    assert [metrics["step"] for metrics in finished.metrics] == [0.5, 0.5]  # the mean of both steps
    assert all(metrics["time/run_execution"] <= finished.seconds for metrics in finished.metrics)
    (group,) = await alone.experiences()
    assert group.run_ids.tolist() == [2, 2, 3, 3]
    assert {sample.version_min for sample in group.samples()} == {alone.engine.model_version}


async def test_a_broken_workflow_is_a_typed_failure_and_never_a_reward(alone: Mesh) -> None:
    await alone.send(dispatch(alone.incarnation, task=Task(task_id="a", workflow="math", prompt="no answer given")))
    await alone.send(dispatch(alone.incarnation, task=Task(task_id="b", workflow="unheard-of", prompt="x")))
    by_task = {result.task_id: result for result in [await alone.event(RolloutFinished) for _ in range(2)]}
    for task_id, error in (("a", "WorkflowError: "), ("b", "UnknownWorkflow: unknown workflow 'unheard-of'")):
        result = by_task[task_id]
        assert (result.status, result.completed_runs, result.metrics, result.experience) == ("failed", 0, [], None)
        assert result.error is not None
        assert result.error.startswith(error)
    assert await alone.experiences() == []


async def test_a_blocked_attempt_is_answered_when_its_time_is_up_and_the_states_of_runners_tell_of_it(
    settings: Settings, fork_server: ForkServer
) -> None:
    quick = settings.explorer.model_copy(update={"cancel_grace_s": 0.5, "runner_report_s": 0.2})
    async with explored(settings.model_copy(update={"explorer": quick}), fork_server) as mesh:
        task = Task(task_id="blocking", workflow="block", prompt=os.devnull)
        await mesh.send(dispatch(mesh.incarnation, task=task, timeout_s=3.0))
        report = await mesh.event(RunnersReport, lambda report: report.runners[0].state == "busy")
        (runner,) = report.runners
        assert (runner.runner, [one.task_id for one in runner.running]) == (f"{NAME}/0", ["blocking"])
        assert runner.values[0]["workflow_id"] == "1/blocking/0"
        result = await mesh.event(RolloutFinished)
        assert result.error == "AttemptTimeoutError: no result within 3 s"
        await mesh.event(RunnersReport, lambda report: report.runners[0].restarts == 1)
        await mesh.send(dispatch(mesh.incarnation, "next"))
        assert (await mesh.event(RolloutFinished)).status == "completed"


async def test_an_attempt_out_of_time_fails_and_its_request_is_aborted(alone: Mesh) -> None:
    alone.engine.open.clear()
    # Long enough for its request to be in the engine.
    await alone.send(dispatch(alone.incarnation, timeout_s=4.0))
    result = await alone.event(RolloutFinished)
    assert (result.status, result.error) == ("failed", "AttemptTimeoutError: no result within 4 s")
    await until(lambda: alone.engine.aborted == 1)


async def test_a_cancelled_attempt_is_aborted_and_not_answered(alone: Mesh) -> None:
    alone.engine.open.clear()
    order = dispatch(alone.incarnation, "unwanted")
    await alone.send(order)
    await alone.event(ExplorerHeartbeat, lambda beat: [a.task_id for a in beat.running] == ["unwanted"])
    # Nothing is running in those from before the order, either.
    alone.seen.clear()
    await until(lambda: alone.engine.waiting == 1)
    await alone.send(cancel(order))
    await alone.event(ExplorerHeartbeat, lambda beat: not beat.running)
    assert alone.engine.aborted == 1
    alone.engine.open.set()
    await alone.send(dispatch(alone.incarnation, "next"))
    assert (await alone.event(RolloutFinished)).task_id == "next"


async def test_an_attempt_waits_for_the_version_that_it_needs(alone: Mesh) -> None:
    await alone.send(dispatch(alone.incarnation, "later", min_version=3))
    await alone.event(ExplorerHeartbeat, lambda beat: bool(beat.running))
    await alone.announce(announcement(3, alone.incarnation))
    synced = await alone.event(WeightsSynced)
    assert (synced.ok, synced.version, synced.checksum) == (True, 3, f"{3:064d}")
    assert (synced.control_s, synced.transfer_s, synced.pause_s) == (0.001, 0.002, 0.003)
    result = await alone.event(RolloutFinished)
    assert (result.version_min, result.version_max) == (3, 3)
    await alone.event(ExplorerHeartbeat, lambda beat: beat.model_version == 3)


async def test_a_transfer_that_fails_is_told_and_one_that_is_superseded_ends(alone: Mesh) -> None:
    hanging = asyncio.Event()
    began: list[int] = []

    def on_sync(announced: ModelVersion) -> Any:
        began.append(announced.version)
        if announced.version == 1:
            raise WeightTransferError("the wire was cut")
        return hanging.wait() if announced.version == 2 else None

    alone.engine.on_sync = on_sync
    await alone.announce(announcement(1, alone.incarnation))
    failed = await alone.event(WeightsSynced)
    assert (failed.ok, failed.error) == (False, "WeightTransferError: the wire was cut")
    await alone.announce(announcement(9, "former-life"))
    await alone.announce(announcement(2, alone.incarnation))
    async with asyncio.timeout(LIMIT_S):
        while began != [1, 2]:
            await alone.event(ExplorerHeartbeat)
    await alone.announce(announcement(3, alone.incarnation, epoch=2))
    assert (await alone.event(WeightsSynced)).version == 3
    assert began == [1, 2, 3]


async def test_a_stop_drains_says_goodbye_and_aborts_what_does_not_finish(alone: Mesh) -> None:
    alone.engine.open.clear()
    await alone.send(dispatch(alone.incarnation))
    await until(lambda: alone.engine.waiting == 1)
    alone.explorer.cancel()
    await alone.event(ExplorerHeartbeat, lambda beat: beat.state == "draining" and len(beat.running) == 1)
    left = await alone.event(ExplorerLeft)
    assert (left.incarnation, left.reason) == (alone.incarnation, "stopped")
    # Told before: what it had is given back.
    assert any(isinstance(told, ExplorerHeartbeat) and not told.running for told in alone.seen)
    await asyncio.wait([alone.explorer])
    assert alone.engine.aborted == 1


async def test_whoever_drains_for_long_goes_on_telling_that_it_lives_and_taking_versions(
    settings: Settings, fork_server: ForkServer
) -> None:
    patient = settings.explorer.model_copy(update={"drain_s": float(LIMIT_S)})
    async with explored(settings.model_copy(update={"explorer": patient}), fork_server) as mesh:
        mesh.engine.open.clear()
        await mesh.send(dispatch(mesh.incarnation))
        await until(lambda: mesh.engine.waiting == 1)
        hanging = asyncio.Event()
        mesh.engine.on_sync = lambda announced: hanging.wait() if announced.version == 1 else None
        await mesh.announce(announcement(1, mesh.incarnation))
        # One is under way when it is told to stop, and goes on.
        mesh.explorer.cancel()
        for _ in range(4):
            await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "draining" and len(beat.running) == 1)
        hanging.set()
        assert (await mesh.event(WeightsSynced)).version == 1
        await mesh.announce(announcement(2, mesh.incarnation, epoch=2))
        synced = await mesh.event(WeightsSynced)
        assert (synced.version, synced.ok) == (2, True)
        await mesh.event(ExplorerHeartbeat, lambda beat: (beat.state, beat.model_version) == ("draining", 2))
        mesh.engine.open.set()
        assert (await mesh.event(RolloutFinished)).status == "completed"
        assert (await mesh.event(ExplorerLeft)).reason == "stopped"


async def test_a_dead_engine_ends_the_explorer_and_it_says_that_it_left(alone: Mesh) -> None:
    alone.engine.death.set_result(EngineDeadError("the engine's process is gone"))
    assert (await alone.event(ExplorerLeft)).reason == "the engine's process is gone"
    await asyncio.wait([alone.explorer])
    error = alone.explorer.exception()
    assert error is not None
    assert str(first_error(error)) == "the engine's process is gone"


async def test_an_unreadable_order_is_a_dead_letter_and_the_lane_goes_on(alone: Mesh) -> None:
    await alone.send_raw(b"\xc1 no msgpack")
    await alone.send(dispatch(alone.incarnation))
    await alone.event(RolloutFinished)
    async with alone.bus.reader(EXPLORER_DEAD_LETTERS, start="beginning") as letters:
        assert [received.raw for received in await take(letters, 1)] == [b"\xc1 no msgpack"]


async def test_a_killed_explorer_answers_nothing_and_its_next_life_ignores_its_orders(
    settings: Settings, fork_server: ForkServer
) -> None:
    async with mesh_of(settings) as mesh:
        async with process_of(settings, "answers"):
            incarnation = await mesh.joined()
            await mesh.send(dispatch(incarnation, "unlucky"))
            await mesh.event(ExplorerHeartbeat, lambda beat: bool(beat.running))
        async with exploring(settings, FakeEngine(), fork_server):
            second = await mesh.joined(incarnation)
            # Handed out again by a coordinator that has not heard of the death, and then by one that has.
            await mesh.send(dispatch(incarnation, "unlucky"))
            await mesh.send(dispatch(second, "unlucky", attempt=2))
            result = await mesh.event(RolloutFinished)
            assert (result.incarnation, result.attempt) == (second, 2)
        assert [group.attempt for group in await mesh.experiences()] == [2]


async def test_a_fixed_explorer_serves_its_pool_and_reads_no_versions(
    settings: Settings, fork_server: ForkServer
) -> None:
    explorer = settings.explorer.model_copy(update={"pool": "judge", "follows": "none"})
    settings = settings.model_copy(update={"explorer": explorer})
    engine = FakeEngine(version=-1)
    with ForkServer(settings, tokenizer=TOKENIZER) as runners:
        async with mesh_of(settings) as mesh, exploring(settings, engine, runners):
            beat = await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "ready")
            assert (beat.pool, beat.follows, beat.model, beat.model_version) == ("judge", "none", "judge", -1)
            assert (beat.abilities, beat.max_model_len) == (["logprobs"], 1024)
            # Somebody names it all the same.
            await mesh.announce(announcement(3, beat.incarnation))
            await mesh.send(dispatch(beat.incarnation))
            finished = await mesh.event(RolloutFinished)
            assert (finished.status, finished.version_min) == ("completed", -1), finished.error
            (group,) = await mesh.experiences()
            assert (group.model, len(group.versions)) == ("judge", 0)
            assert engine.model_version == -1


# One that speaks to its context, and a function with a client of OpenAI's.
@pytest.mark.parametrize("workflow", ["converse", "takes-notes"])
async def test_killed_in_its_third_turn_a_run_goes_on_from_the_second_on_another_explorer(
    settings: Settings, fork_server: ForkServer, tmp_path: Path, workflow: str
) -> None:
    noted = tmp_path / "noted"
    task = Task(task_id="long", workflow=workflow, prompt=str(noted))
    alone: dict[str, Any] = {"repeat_times": 1, "timeout_s": 120.0}
    async with mesh_of(settings) as mesh, mesh.bus.reader(TURNS, start="beginning") as turns:
        async with process_of(settings, "hangs", HANG_AT="2"):
            incarnation = await mesh.joined()
            await mesh.send(dispatch(incarnation, "long", task=task, **alone))
            kept: list[Turn] = []
            async with asyncio.timeout(LIMIT_S):
                while len(kept) < 2:
                    kept += [record_of(received) for received in await turns.batch(1)]
            beat = await mesh.event(ExplorerHeartbeat, lambda beat: any(one.turns for one in beat.running))
        assert [(turn.number, turn.attempt, len(turn.answers)) for turn in kept] == [(0, 1, 2), (1, 1, 2)]
        engine = CountingEngine("b", hang_at=-1)
        async with exploring(settings, engine, fork_server):
            second = await mesh.joined(incarnation)
            await mesh.send(dispatch(second, "long", task=task, attempt=2, turns=beat.running[0].turns, **alone))
            result = await mesh.event(RolloutFinished)
        assert (result.status, result.error) == ("completed", None)
        assert engine.requests == 2, "only what was not drawn before is drawn"
        (group,) = await mesh.experiences()
        (sample,) = group.samples()
        drawn = np.asarray(sample.tokens)[-len(sample.mask) :][np.asarray(sample.mask)]
        assert "".join(map(chr, drawn)) == "a0a1b0b1"
        assert noted.read_text().split() == ["a0", "a1", "b0", "b1"], "no tool is called twice"
        further = [record_of(received) async for received in turns.replay()]
        assert [(turn.number, turn.attempt, turn.after) for turn in further] == [(2, 2, 1), (3, 2, 2)]


async def test_killed_in_the_second_call_of_a_turn_nothing_of_that_call_is_left_in_the_sandbox(
    settings: Settings, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    calls = [{"name": "note", "arguments": {"path": str(noted), "line": line}} for line in ("one", "two")]
    task = Task(task_id="calls", workflow="notes", prompt="Note it.")
    alone: dict[str, Any] = {"repeat_times": 1, "timeout_s": 120.0}
    answer = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    async with mesh_of(settings) as mesh:
        async with process_of(settings, "answers", ANSWER=answer) as process:
            incarnation = await mesh.joined()
            await mesh.send(dispatch(incarnation, "calls", task=task, **alone))
            beat = await mesh.event(ExplorerHeartbeat, lambda beat: any(one.turns for one in beat.running))
            await until(lambda: noted.exists() and noted.read_text().split() == ["one", "two"], limit_s=LIMIT_S)
            family = psutil.Process(process.pid).children(recursive=True)
        await until(lambda: not any(map(is_alive, family)), limit_s=LIMIT_S)
        noted.with_suffix(".go").touch()
        engine = FakeEngine(answer="Done.")
        # Of the same mesh: what sandboxes hold is found by its name.
        own = Settings(kafka=settings.kafka, explorer=ExplorerSettings(workflow_modules=MODULES))
        with ForkServer(own, tokenizer=TOKENIZER) as fork_server:
            async with exploring(settings, engine, fork_server):
                second = await mesh.joined(incarnation)
                await mesh.send(dispatch(second, "calls", task=task, attempt=2, turns=beat.running[0].turns, **alone))
                result = await mesh.event(RolloutFinished)
        assert (result.status, result.error) == ("completed", None)
        assert noted.read_text().split() == ["one", "two", "one", "two"], "the sandbox is filled anew, call by call"
        assert len(engine.prompts) == 1, "what was drawn before the first call is not drawn again"
        assert result.metrics[0]["tool_calls"] == 2
        assert result.metrics[0]["reward"] == 2.0, "what the call under way has left is not there"
        left = KeptPlaces(settings.kafka.namespace, "calls").of_run(0)
        assert (left.calls(), list(left.files.iterdir())) == ([], []), "nothing of it is left after the answer"
        left.remove()


LONG = "".join(chr(1000 + i) for i in range(900))


def by_tokens(settings: Settings) -> Settings:
    return settings.model_copy(update={"explorer": settings.explorer.model_copy(update={"turn_tokens": 512})})


def long_task() -> dict[str, Any]:
    task = Task(task_id="long", workflow="math", prompt="6*7=", answer="42", sampling=Sampling(max_tokens=1000))
    return {"task": task, "repeat_times": 1, "timeout_s": 120.0}


def tokens_in(record: PartialResponses) -> int:
    return sum(len(tokens_of(one.token_ids)) for answer in record.answers for one in answer.responses or ())


async def gone_on_with(mesh: Mesh, settings: Settings, fork_server: ForkServer, former: str, turns: Any) -> int:
    """Have another explorer go on with the long response; return how many tokens it draws."""
    engine = FakeEngine(answer=LONG)
    async with exploring(by_tokens(settings), engine, fork_server):
        second = await mesh.joined(former)
        await mesh.send(dispatch(second, "long", attempt=2, turns=turns, **long_task()))
        result = await mesh.event(RolloutFinished)
    assert (result.status, result.error) == ("completed", None)
    (group,) = await mesh.experiences()
    (sample,) = group.samples()
    assert "".join(map(chr, sample.tokens[sample.prompt_length :])) == LONG
    return engine.tokens_generated


async def test_killed_amid_a_long_response_it_is_gone_on_with_on_another_explorer(
    settings: Settings, fork_server: ForkServer
) -> None:
    drawn, most = 700, 64
    variables = {"ANSWER": LONG, "HANG_AFTER": str(drawn), "TRINITY_BUS_EXPLORER__TURN_TOKENS": str(most)}
    async with mesh_of(settings) as mesh, mesh.bus.reader(TURNS, start="beginning") as turns:
        async with process_of(settings, "answers", **variables):
            incarnation = await mesh.joined()
            await mesh.send(dispatch(incarnation, "long", **long_task()))
            beat = await mesh.event(
                ExplorerHeartbeat,
                lambda beat: beat.tokens_generated == drawn and any(one.turns for one in beat.running),
            )
            # What is on its way to the log would be drawn again, too.
            written = 0
            async with asyncio.timeout(LIMIT_S):
                while drawn - written >= most:
                    written += sum(tokens_in(record_of(received)) for received in await turns.batch(1))
        again = await gone_on_with(mesh, settings, fork_server, incarnation, beat.running[0].turns)
    assert 0 < drawn + again - len(LONG) <= most


async def test_drained_amid_a_long_response_it_is_gone_on_with_where_it_was(
    settings: Settings, fork_server: ForkServer
) -> None:
    engine = FakeEngine(answer=LONG)
    engine.hang_after = 300
    async with mesh_of(settings) as mesh:
        async with exploring(by_tokens(settings), engine, fork_server):
            incarnation = await mesh.joined()
            await mesh.send(dispatch(incarnation, "long", **long_task()))
            await until(lambda: engine.tokens_generated == 300, limit_s=LIMIT_S)
        beat = await mesh.event(ExplorerHeartbeat, lambda beat: any(one.turns for one in beat.running))
        assert beat.state == "draining"
        await mesh.event(ExplorerHeartbeat, lambda beat: beat.state == "draining" and not beat.running)
        again = await gone_on_with(mesh, settings, fork_server, incarnation, beat.running[0].turns)
    assert 300 + again - len(LONG) == 1


async def test_a_run_of_a_single_turn_writes_none(alone: Mesh) -> None:
    await alone.send(dispatch(alone.incarnation))
    await alone.event(RolloutFinished)
    async with alone.bus.reader(TURNS, start="beginning") as turns:
        assert [received async for received in turns.replay()] == []
