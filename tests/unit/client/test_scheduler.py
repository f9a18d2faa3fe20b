import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import (
    AbortBatch,
    CancelTasks,
    CommandReply,
    ExperienceGroup,
    ExplorerHeartbeat,
    RunnersReport,
    RunnerState,
    RunningAttempt,
    SubmitBatch,
)
from schemas.codec import decode
from tests.support.fakes.coordinator import FakeBatch, FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.mesh.client_fleet import tasks
from trinity_bus.client import RolloutCoordinator, Scheduler, Synchronizer
from trinity_bus.client.connection import check_reply
from trinity_bus.client.results import CLEANUP
from trinity_bus.config import Settings
from trinity_bus.errors import BusError, NoCoordinatorError, NotStartedError, RefusedError, SendError

pytestmark = pytest.mark.timeout(60)
NEVER = 60.0


class Mesh:
    """A scheduler, its fake coordinator and the log between them."""

    def __init__(self, log: FakeLog, bus: Any, coordinator: FakeCoordinator) -> None:
        self.log, self.bus, self.coordinator = log, bus, coordinator
        self.settings = Settings()
        self.scheduler = Scheduler(self.settings, bus=bus)

    def name(self, task_id: str) -> Any:
        """The id on the log of a task that has no result yet, or None."""
        names = (n for batch in self.coordinator.batches.values() for n in batch.tasks if n not in batch.results)
        return next((name for name in names if name.endswith(f"#{task_id}")), None)

    async def finish(self, task_id: str, *arguments: Any, **options: Any) -> None:
        await self.coordinator.until(lambda: self.name(task_id))
        await self.coordinator.finish(self.name(task_id), *arguments, **options)

    async def until_there(self, batch_id: int, count: int) -> None:
        """Waits until so many results of a batch can be taken."""
        batch: Any = self.scheduler._batches.get(batch_id)
        while batch.tracker.ready < count:
            await self.scheduler._change(10, [batch])

    def sent(self, kind: type) -> list[Any]:
        return [command for command in self.coordinator.commands if isinstance(command, kind)]


@pytest.fixture
async def mesh(log: FakeLog, bus: FakeBus, coordinator: FakeCoordinator) -> AsyncIterator[Mesh]:
    made = Mesh(log, bus, coordinator)
    async with made.scheduler:
        yield made


async def test_tasks_are_scheduled_and_their_results_taken_in_the_order_of_scheduling(mesh: Mesh) -> None:
    await mesh.scheduler.schedule(tasks(2, repeat_times=4), 1)
    await mesh.scheduler.schedule(tasks(1, first=2), 1)
    assert mesh.scheduler.has_step(1)
    (submitted,) = mesh.sent(SubmitBatch)
    assert submitted.expected_task_count is None
    assert submitted.batch_id.startswith("1@")
    waiting = asyncio.create_task(mesh.scheduler.get_payload_results(1))
    await mesh.finish("t2")
    await mesh.finish("t1", parts=2)
    await mesh.finish("t0", "failed", error="ValueError: no")
    statuses, payloads = await waiting
    assert [(s.completed_runs, s.total_runs, s.ok) for s in statuses] == [(0, 4, False), (4, 4, True), (1, 1, True)]
    assert statuses[0].message == "0/4 runs completed successfully. First error: ValueError: no"
    found = [decode(payload, ExperienceGroup).task_id.partition("#")[2] for payload in payloads]
    assert found == ["t1", "t1", "t2"]
    assert not mesh.scheduler.has_step(1)
    assert await mesh.scheduler.get_payload_results(1) == ([], [])
    # Nothing is left of it, so it does not stay open.
    await mesh.coordinator.until(lambda: mesh.sent(AbortBatch))


async def test_nothing_is_scheduled_of_nothing_and_unknown_batches_have_nothing(mesh: Mesh) -> None:
    await mesh.scheduler.schedule([], 1)
    assert not mesh.scheduler.has_step(1)
    assert await mesh.scheduler.get_payload_results(1, timeout=NEVER) == ([], [])
    assert await mesh.scheduler.get_statuses("other") == []
    assert await mesh.scheduler.drain_batch_payload_results(1) == ([], [])
    mesh.scheduler.discard_completed_results(1)
    await mesh.scheduler.abort_batch(1)
    await mesh.scheduler.wait_all()
    assert mesh.coordinator.commands == []


async def test_enough_results_end_the_wait_and_the_others_are_cut_off(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(3), 1)
    await mesh.finish("t1")
    statuses = await mesh.scheduler.get_statuses(1, min_num=1, timeout=NEVER)
    assert [s.ok for s in statuses] == [True]
    assert mesh.bus.fetched == 0, "statuses alone read no experience"
    (cancel,) = mesh.sent(CancelTasks)
    assert (cancel.restart_runners, cancel.return_partial_tasks, cancel.reason) == (False, False, CLEANUP)
    assert not mesh.scheduler.has_step(1)


async def test_partial_tasks_count_when_they_are_asked_for(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(2, repeat_times=4), 1)
    mesh.scheduler.schedule(tasks(1, first=2, repeat_times=1), 1)
    await mesh.finish("t0")
    await mesh.coordinator.until(lambda: len(mesh.coordinator.tasks) == 3)
    statuses, payloads = await mesh.scheduler.get_payload_results(1, timeout=0.01, return_partial_tasks=True)
    assert [(s.completed_runs, s.total_runs) for s in statuses] == [(4, 4), (1, 4)]
    assert statuses[1].message == f"1/4 runs completed successfully. {CLEANUP}"
    assert len(payloads) == 2
    (cancel,) = mesh.sent(CancelTasks)
    assert (cancel.restart_runners, cancel.return_partial_tasks) == (True, True)


async def test_a_timeout_of_0_waits_as_long_as_none(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(1), 1)
    waiting = [
        asyncio.create_task(mesh.scheduler.wait_all(timeout=0)),
        asyncio.create_task(mesh.scheduler.get_statuses(1, timeout=0)),
    ]
    await mesh.coordinator.until(lambda: mesh.coordinator.tasks)
    await mesh.finish("t0")
    _, statuses = await asyncio.gather(*waiting)
    assert [status.ok for status in statuses or ()] == [True]
    assert mesh.scheduler.dynamic_timeout(0) == mesh.scheduler.dynamic_timeout()


async def test_payloads_that_cannot_be_read_take_nothing(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(1), 1)
    await mesh.finish("t0")
    mesh.bus.refuse_fetches = 1
    with pytest.raises(BusError):
        await mesh.scheduler.get_payload_results(1)
    statuses, payloads = await mesh.scheduler.get_payload_results(1)
    assert (len(statuses), len(payloads)) == (1, 1)


async def test_a_task_that_the_coordinator_refuses_is_answered(mesh: Mesh) -> None:
    await mesh.scheduler.schedule(tasks(1, repeat_times=2), 1)
    await mesh.coordinator.until(lambda: mesh.coordinator.tasks)
    name = mesh.name("t0")
    await mesh.coordinator.refuse(name, "duplicate_task")
    await mesh.coordinator.refuse(name, "unknown_workflow")
    (status,) = await mesh.scheduler.get_statuses(1)
    assert status.message == "0/2 runs completed successfully. First error: unknown_workflow: says the fake"


async def test_an_abort_from_elsewhere_is_told_in_the_statuses(mesh: Mesh) -> None:
    await mesh.scheduler.schedule(tasks(2), 1)
    await mesh.coordinator.until(lambda: len(mesh.coordinator.tasks) == 2)
    (submitted,) = mesh.sent(SubmitBatch)
    command = AbortBatch(client="x", command_id="x/1", batch_id=submitted.batch_id, reason="an operator's wish")
    await mesh.coordinator._carry_out(command)
    statuses = await mesh.scheduler.get_statuses(1)
    assert {s.message for s in statuses} == {"0/1 runs completed successfully. First error: an operator's wish"}


async def test_aborting_keeps_results_that_are_there_and_refuses_tasks_that_were_not_read_yet(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(2), 1)
    await mesh.finish("t0")
    await mesh.scheduler.abort_batch(1)
    assert mesh.scheduler.has_step(1)
    (cancel,) = mesh.sent(CancelTasks)
    assert cancel.restart_runners
    assert len(await mesh.scheduler.get_statuses(1)) == 1
    assert not mesh.scheduler.has_step(1)


async def test_discarded_results_are_gone_and_the_others_still_come(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(2), 1)
    await mesh.finish("t0")
    await mesh.until_there(1, 1)
    mesh.scheduler.discard_completed_results(1)
    await mesh.finish("t1")
    assert len(await mesh.scheduler.get_statuses(1)) == 1
    assert not mesh.scheduler.has_step(1)


async def test_waiting_for_all_takes_nothing_and_says_what_is_left(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(3), 1)
    mesh.scheduler.schedule(tasks(1), "1/held-out")
    await mesh.coordinator.until(lambda: len(mesh.coordinator.tasks) == 4)
    running = next(name for name in mesh.coordinator.tasks if name.endswith("#t2"))
    attempts = [RunningAttempt(task_id=running, attempt=1)]
    beat = ExplorerHeartbeat(explorer="e", incarnation="1", state="ready", slots=4, running=attempts)
    await mesh.coordinator.say(beat, "e")
    left = r"Still have 3 pending tasks and 1 running tasks\."
    with pytest.raises(TimeoutError, match=rf"^Timeout after 1.0 seconds\. {left}$"):
        await mesh.scheduler.wait_all(timeout=1.0, clear_timeout_tasks=False)
    await mesh.finish("t0")
    with pytest.raises(TimeoutError, match="Still have"):
        await mesh.scheduler.wait_all(timeout=0.05)
    # Everything unfinished was cut off; what was there is still there.
    assert len(await mesh.scheduler.get_statuses("1/held-out")) + len(await mesh.scheduler.get_statuses(1)) == 1
    await mesh.scheduler.wait_all()


async def test_tasks_that_could_not_be_sent_are_told_by_the_next_wait_until_the_batch_is_aborted(mesh: Mesh) -> None:
    await mesh.scheduler.schedule(tasks(1), 1)
    mesh.log.refuse_sends = 1
    sending = mesh.scheduler.schedule(tasks(1, first=1), 1)
    with pytest.raises(SendError):
        await sending
    with pytest.raises(SendError):
        await mesh.scheduler.get_statuses(1)
    with pytest.raises(SendError):
        await mesh.scheduler.wait_all()
    await mesh.scheduler.abort_batch(1)
    assert not mesh.scheduler.has_step(1)


async def test_tasks_that_contradict_their_batch_are_refused_and_nothing_is_scheduled(mesh: Mesh) -> None:
    for wrong in ([*tasks(1), *tasks(1, first=1, batch_type="eval")], [*tasks(1), *tasks(1)]):
        with pytest.raises(ValueError, match="atch"):
            mesh.scheduler.schedule(wrong, 1)
    assert not mesh.scheduler.has_step(1)
    mesh.scheduler.schedule(tasks(1), 1)
    with pytest.raises(ValueError, match="'t0' is twice in batch '1':"):
        mesh.scheduler.schedule(tasks(1), 1)
    with pytest.raises(ValueError, match="cannot be eval"):
        mesh.scheduler.schedule(tasks(1, first=1, batch_type="eval"), 1)


async def test_start_and_stop_may_be_called_again(log: FakeLog, bus: FakeBus, coordinator: FakeCoordinator) -> None:
    mesh = Mesh(log, bus, coordinator)
    with pytest.raises(RuntimeError, match="not started"):
        mesh.scheduler.schedule(tasks(1), 1)
    await mesh.scheduler.stop()
    await asyncio.gather(mesh.scheduler.start(), mesh.scheduler.start())
    mesh.scheduler.schedule(tasks(2), 1)
    await mesh.finish("t0")
    await mesh.until_there(1, 1)
    await mesh.scheduler.get_statuses(1, timeout=0.01, min_num=0, clear_timeout_tasks=False)
    mesh.scheduler.schedule(tasks(1, first=2), 2)
    await mesh.finish("t2")
    await mesh.until_there(2, 1)
    await mesh.scheduler.stop()
    await mesh.scheduler.stop()
    assert {batch.state.value for batch in mesh.coordinator.batches.values()} == {"aborted"}
    await mesh.scheduler.start()
    assert len(await mesh.scheduler.get_statuses(2)) == 1
    mesh.scheduler.schedule(tasks(1), 1)
    await mesh.finish("t0")
    assert len(await mesh.scheduler.get_statuses(1)) == 1
    await mesh.scheduler.stop()


async def test_without_a_coordinator_start_says_so(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.client.scheduler.SILENCE_S", 0.05)
    with pytest.raises(NoCoordinatorError, match="trinity-bus run coordinator"):
        await Scheduler(Settings(), bus=bus).start()


async def test_limits_of_attempts_are_those_that_were_measured(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [mesh.scheduler.dynamic_timeout(asked) for asked in (None, 3.0, 99.0)] == [12.0, 3.0, 12.0]
    heartbeat = mesh.scheduler._coordinator().model_copy(update={"dynamic_timeout_s": 30.0})
    monkeypatch.setattr(mesh.scheduler, "_coordinator", lambda: heartbeat)
    assert mesh.scheduler.dynamic_timeout() == heartbeat.max_timeout_s == 30.0
    assert [mesh.scheduler.dynamic_timeout(asked) for asked in (3.0, 60.0)] == [3.0, 60.0]


def test_models_that_are_given_are_not_used_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Scheduler(Settings())
    RolloutCoordinator.get_actor(Settings())
    assert not caplog.messages
    for make in (Scheduler, RolloutCoordinator, RolloutCoordinator.get_actor):
        make(Settings(), ["a model"], [["a judge"]])
    Synchronizer(Settings(), "an actor")
    assert len(caplog.messages) == 4
    assert {message.split(":")[0] for message in caplog.messages} == {
        "models and actors that a client is given are not used"
    }
    assert Synchronizer.get_actor(Settings(), "another")._settings.kafka.namespace == "another"


async def test_states_of_runners_are_told_by_their_names(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    assert mesh.scheduler.get_all_state() == {}
    values = [{"workflow_id": f"1/{task}/0", "model_version": version} for task, version in (("t", 3), ("u", 4))]
    running = [RunningAttempt(task_id="t", attempt=1)]
    busy = RunnerState(runner="e/0", state="busy", pid=1, running=running, values=values)
    runners = [busy, RunnerState(runner="e/1", state="idle", pid=2)]
    await mesh.coordinator.say(RunnersReport(explorer="e", incarnation="1", runners=runners), "e")
    while not mesh.scheduler.get_all_state():
        await mesh.scheduler._change(0.01, [])
    assert list(mesh.scheduler.get_all_state()) == ["e/0", "e/1"]
    assert mesh.scheduler.get_key_state("model_version") == {"e/0": 3}
    assert mesh.scheduler.get_key_state("state") == {"e/0": "busy", "e/1": "idle"}
    assert [a["workflow_id"] for a in mesh.scheduler.get_runner_state("e/0")["attempts"]] == ["1/t/0", "1/u/0"]
    assert mesh.scheduler.get_runner_state("e/7") == {}
    with caplog.at_level(logging.INFO):
        mesh.scheduler.print_all_state()
    assert "e/1     -            -              idle" in caplog.text


async def test_refusals_name_the_batch_as_its_caller_does(mesh: Mesh) -> None:
    name = mesh.scheduler._next_name(3)
    mesh.coordinator.batches[name] = FakeBatch(SubmitBatch(client="x", command_id="x/1", batch_id=name))
    with pytest.raises(RefusedError, match=r"^Batch 3 is already active\.$"):
        await mesh.scheduler.schedule(tasks(1), 3)
    closed = CommandReply(client="x", command_id="x/2", batch_id=name, error="batch_closed", detail=f"{name} has ended")
    with pytest.raises(RefusedError, match=r"^3 has ended$"):
        check_reply(closed, 3)


async def test_calls_amid_a_stop_fail_at_once(mesh: Mesh) -> None:
    mesh.scheduler.schedule(tasks(1), 1)
    await mesh.coordinator.until(lambda: mesh.coordinator.tasks)
    mesh.coordinator.deaf = True
    stopping = asyncio.create_task(mesh.scheduler.stop())
    await mesh.coordinator.until(lambda: mesh.sent(CancelTasks))
    with pytest.raises(NotStartedError):
        mesh.scheduler.schedule(tasks(1, first=1), 2)
    mesh.coordinator.deaf = False
    await mesh.coordinator._carry_out(mesh.sent(CancelTasks)[0])
    await stopping


async def test_a_wait_for_a_batch_that_a_stop_leaves_open_fails_at_once(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> None:
        raise NoCoordinatorError("nobody answers")

    await mesh.scheduler.schedule(tasks(1), 1)
    waiting = asyncio.create_task(mesh.scheduler.get_statuses(1, timeout=NEVER))
    await asyncio.sleep(0)
    monkeypatch.setattr(mesh.scheduler.connection.channel, "ask", silent)
    with pytest.raises(NoCoordinatorError):
        await mesh.scheduler.stop()
    with pytest.raises(NotStartedError):
        await waiting
    # It is closed once somebody answers again.
    await mesh.scheduler.start()
    await mesh.scheduler.abort_batch(1)
