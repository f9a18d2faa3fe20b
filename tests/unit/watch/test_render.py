from typing import Any

import pytest
from rich.console import Console

from schemas import BatchLifecycleState, ExplorerLeft, RunnersReport, RunnerState, RunningAttempt
from tests.support.fakes.mesh_records import batch, coordinator_beat
from trinity_bus.view import MeshState, state_table
from workers.watch import all_batches_table, mesh, runners_table, span

State = BatchLifecycleState


def printed(table: Any, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_batches_that_go_on_are_always_shown_and_of_the_others_the_newest() -> None:
    view = MeshState()
    view.apply(batch("0", State.RUNNING, expected_task_count=64, completed_task_count=3), 50.0)
    for number in range(1, 5):
        view.apply(batch(str(number), State.PENDING, expected_task_count=2), 50.0 + number)
        view.apply(batch(str(number), State.FINALIZED, expected_task_count=2, completed_task_count=2), 60.0 + number)
    view.apply(batch("open", State.RUNNING, accepted_task_count=9, completed_task_count=4), 100.0)
    view.tick(200.0)
    lines = printed(all_batches_table(view, 2))
    assert [row[0] for row in cells(lines)] == ["0", "3", "4", "open"]
    assert [row[3] for row in cells(lines)] == ["3/64", "2/2", "2/2", "4/9 open"]
    assert [row[6] for row in cells(lines)] == ["2 min", "2 min", "2 min", "100 s"]
    assert "and 2 older ones that have ended" in lines[-1]
    assert all(len(line) <= 80 for line in lines)


def test_a_reason_has_a_column_where_there_is_one_and_cannot_steer_the_terminal() -> None:
    view = MeshState()
    view.apply(batch("1", State.ABORTED, expected_task_count=2, reason="out of\x1b[2J luck"), 0.0)
    (row,) = cells(printed(all_batches_table(view, 20), 160))
    assert row[-1] == "out of\\x1b[2J luck"


def test_runners_are_shown_with_what_they_are_at_until_their_explorer_leaves() -> None:
    view = MeshState()
    running = [RunningAttempt(task_id=name, attempt=1) for name in ("a", "b")]
    values = [{"workflow_id": "1/a/\x1b0", "running_time": 300.0, "model_version": 4}, {"workflow_id": "1/b/0"}]
    runners = [
        RunnerState(runner="e/0", state="busy", pid=7, running=running, values=values, rss_mib=1234.5, restarts=1),
        RunnerState(runner="e/1", state="starting", pid=8),
    ]
    view.apply(RunnersReport(explorer="e", incarnation="x", runners=runners), 10.0)
    rows = cells(printed(runners_table(view), 160))
    assert rows == [
        ["e/0", "busy", "7", "1/a/\\x1b0 and 1 more", "4", "5 min", "0", "1", "1,234 MiB"],
        ["e/1", "starting", "8", "", "", "", "0", "0", "0 MiB"],
    ]
    # One that said nothing for long is lost; another incarnation's leaving is not its own.
    view.apply(ExplorerLeft(explorer="e", incarnation="y"), 11.0)
    assert len(view.runners()) == 2
    view.tick(30.0)
    assert view.runners() == []
    view.apply(RunnersReport(explorer="e", incarnation="x", runners=runners), 30.0)
    view.apply(ExplorerLeft(explorer="e", incarnation="x"), 31.0)
    assert view.runners() == []


def test_status_tells_of_the_coordinator_that_works() -> None:
    view = MeshState()
    assert "open batches" not in "\n".join(printed(mesh(view)))
    counts = {"open_batches": 2, "open_tasks": 60, "running_attempts": 16, "dynamic_timeout_s": 12.5}
    view.apply(coordinator_beat(coordinator="coordinator-7", **counts), 10.0)
    view.tick(14.0)
    shown = "\n".join(printed(mesh(view), 160))
    assert "coordinator-7: 2 open batches, 60 open tasks, 16 running attempts, 12.5 s for each, heard 4 s ago" in shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0 s"), (4.2, "4 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_spans_are_short(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_states_of_runners_are_aligned() -> None:
    states: dict[str, dict[str, Any]] = {
        "a/0": {"state": "idle"},
        "a/11": {"state": "busy", "model_version": 3, "board": "x\ny" * 50},
    }
    lines = state_table(states).splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["runner", "state", "model_version", "board"]
    assert lines[1].split() == ["a/0", "idle", "-", "-"]
    assert lines[2].startswith("a/11    busy   3              x\\nyx\\ny")
