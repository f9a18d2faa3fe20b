from collections.abc import Mapping

from schemas import RunnersReport, codec
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.rollout.workflow import MAX_STATE_BYTES
from trinity_bus.runners.pool import PoolRunner
from trinity_bus.runners.report import JobStatus, accept_state, runner_states


def news(
    task_id: str = "t", *, said: Mapping[str, object] | None = None, terminate_time: float | None = None
) -> JobStatus:
    order = dispatch(task_id, batch_id="7", run_id_base=4)
    return JobStatus(order=order, model_version=3, begin_time=100.0, terminate_time=terminate_time, said=said or {})


def view(serial: int = 0, place: int | None = 0, jobs: tuple[int, ...] = ()) -> PoolRunner:
    return PoolRunner(serial, place, heard=True, jobs=dict.fromkeys(jobs), rss_mib=50.04)


def test_a_runner_at_work_is_told_with_what_it_works_on() -> None:
    running = {0: news(said={"turn": 2, "workflow_id": "another"})}
    (state,) = runner_states("explorer-0", [view(jobs=(0,))], pids={0: 12}, running=running, last={}, now=102.5)
    assert (state.runner, state.pid, state.rss_mib) == ("explorer-0/0", 12, 50.0)
    assert [(one.task_id, one.attempt) for one in state.running] == [("t", 2)]
    # What a workflow says does not stand for what the explorer knows.
    assert state.values == [
        {"turn": 2, "workflow_id": "7/t/4", "model_version": 3, "begin_time": 100.0, "running_time": 2.5}
    ]


def test_an_idle_runner_is_told_with_what_it_did_last() -> None:
    last = {5: news(terminate_time=101.0)}
    (state,) = runner_states("explorer-0", [view(5, None)], pids={}, running={}, last=last, now=150.0)
    assert (state.runner, state.pid, state.running) == ("explorer-0/extra-5", 0, [])
    assert state.values[0]["terminate_time"] == 101.0
    assert state.values[0]["running_time"] == 1.0


def test_a_report_stays_within_what_a_record_may_hold() -> None:
    said = {"text": "x" * (MAX_STATE_BYTES - 16)}
    assert accept_state(said) == said
    running = {job: news(f"task-{job}", said=said) for job in range(1024)}
    states = runner_states("e", [view(jobs=tuple(running))], pids={}, running=running, last={}, now=1.0)
    assert states[0].values[0]["text"] == said["text"]
    assert states[0].values[-1]["omitted"] is True
    codec.encode(RunnersReport(explorer="e", incarnation="life", runners=states))


def test_what_a_workflow_says_too_much_of_is_not_told() -> None:
    assert accept_state({"text": "x" * MAX_STATE_BYTES}) == {"too_large": True}
    assert accept_state({"a": 1, "begin_time": 0}) == {"a": 1}
