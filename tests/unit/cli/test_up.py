import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from schemas import BatchLifecycleState
from schemas.event import TrainerHeartbeat
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.errors import ConfigError
from trinity_bus.sizing.memory import GIB, MODELS, HostMemory, host_memory
from trinity_bus.view import BatchView, MeshState, StepView
from workers import up
from workers.demo.display import make_display
from workers.up import RUNNING, UpOptions, claimed, is_done, plan, run_up, running, says_done, stop

STATES = st.sampled_from(BatchLifecycleState)
BATCHES = st.lists(
    st.tuples(st.sampled_from(["train", "eval"]), STATES, st.integers(0, 4), st.integers(0, 4), st.booleans()),
    max_size=8,
)


def view_of(batches: list[tuple[str, BatchLifecycleState, int, int, bool]], trained: int) -> MeshState:
    view = MeshState()
    for sequence, (kind, state, accepted, completed, skipped) in enumerate(batches, 1):
        view.batches[str(sequence)] = BatchView(
            str(sequence), "train" if kind == "train" else "eval", state, sequence=sequence,
            accepted=max(accepted, completed), completed=completed, reason="to be passed over" if skipped else None,
        )  # fmt: skip
    for number in range(1, min(trained, len(batches)) + 1):
        view.steps[number] = StepView(number, number, str(number), 0.0, 1.0, {}, "", None)
    return view


@given(BATCHES, st.integers(0, 8), st.booleans(), st.booleans())
def test_it_is_done_exactly_when_nothing_is_left(
    batches: list[tuple[str, BatchLifecycleState, int, int, bool]], trained: int, trainer: bool, taskset: bool
) -> None:
    over = {BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED}
    to_answer = any(state not in over and completed < accepted for _, state, accepted, completed, _ in batches)
    to_train = any(
        kind == "train" and state is BatchLifecycleState.FINALIZED and not skipped and sequence > trained
        for sequence, (kind, state, _, _, skipped) in enumerate(batches, 1)
    )
    expected = trainer or (taskset and not to_answer and not to_train)
    assert is_done(view_of(batches, trained), trainer=trainer, taskset=taskset) is expected


def test_what_the_settings_name_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = UpOptions(run_dir=tmp_path, explorers=2, console=True)
    names = [one.name for one in plan(Settings(), options)]
    assert names == ["coordinator", "trainer", "explorer-0", "explorer-1", "console"]
    (tmp_path / "tasks.toml").touch()
    monkeypatch.setenv("TRINITY_BUS_TASKSET__PATH", str(tmp_path / "tasks.toml"))
    found = {one.name: one for one in plan(Settings(), UpOptions(run_dir=tmp_path, gateway=True))}
    assert list(found) == ["coordinator", "trainer", "taskset", "explorer-0", "gateway"]
    assert [name for name, one in found.items() if one.work_ends] == ["trainer", "taskset"]


def test_a_folder_that_nobody_runs_has_nobody_to_stop(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    (tmp_path / RUNNING).write_text(f'{{"pid": {os.getpid()}}}')
    assert running(tmp_path) is None
    assert stop(tmp_path, 1) is None


def test_a_pipe_in_the_place_of_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RUNNING)
    assert running(tmp_path) is None
    with pytest.raises(OSError, match=r"up\.lock"), claimed(tmp_path):
        pass


HOLD = """
import sys
from pathlib import Path
from typing import Any
from workers.up import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_run_by_one_process_also_after_one_was_killed(tmp_path: Path) -> None:
    def hold() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with hold() as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        assert running(tmp_path) == first.pid
        with pytest.raises(ConfigError, match=f"is run by process {first.pid}: trinity-bus down"), claimed(tmp_path):
            pass
        assert running(tmp_path) == first.pid
        first.kill()
    assert (tmp_path / RUNNING).exists()
    assert running(tmp_path) is None
    with hold() as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "held\n"
        assert stop(tmp_path, 30) == second.pid
    with claimed(tmp_path):
        pass
    assert not (tmp_path / RUNNING).exists()


async def test_nothing_is_started_that_memory_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def memory(services: Sequence[str], settings: Sections) -> HostMemory:
        asked.extend(services)
        return host_memory(services, settings, dict.fromkeys(("trainer", "explorer"), MODELS["8B"]), GIB, GIB)

    monkeypatch.setattr(up, "memory", memory)
    with pytest.raises(ConfigError, match=r"of memory, of 1\.0, of which 1\.0 are free: train adapters"):
        await run_up(Settings(), UpOptions(run_dir=tmp_path, explorers=2), make_display(Console(), None))
    assert asked == ["coordinator", "trainer", "explorer", "explorer"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("state", "step", "total", "expected"),
    [("done", 6, 6, True), ("ready", 6, 6, False), ("done", 6, 10, False), ("done", 6, None, False)],
)
def test_a_trainer_that_serves_its_last_version_says_that_it_is_done(
    state: Any, step: int, total: int | None, expected: bool
) -> None:
    beat = TrainerHeartbeat(
        trainer="t", incarnation="i", state=state, model="m", step=step, version=step, master_address="h", master_port=1
    )
    view, settings = MeshState(), TrainerSettings(total_steps=total)
    assert not says_done(view, settings)
    view.trainer, view.trainer_at, view.now = beat, 100.0, 100.0
    assert says_done(view, settings) is expected
    view.now += 2 * view.alive_s
    assert not says_done(view, settings), "an earlier run's"
