import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError

US = WrittenBy(dtype="torch.float32")


def write(directory: Path, step: int, *, keep: int = 3, content: str = "weights") -> Path:
    (checkpoint.begin(directory, step) / "model").write_text(content)
    return checkpoint.commit(directory, TrainingProgress(step=step, batches_offset=step * 10), US, keep=keep)


def test_a_checkpoint_is_invisible_until_it_is_whole(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    partial = checkpoint.begin(tmp_path, 1)
    (partial / "model").write_text("weights")
    assert checkpoint.latest(tmp_path) is None
    folder = checkpoint.commit(tmp_path, TrainingProgress(step=1, version=1, batches_offset=7), US, keep=3)
    assert checkpoint.latest(tmp_path) == folder
    assert not partial.exists()
    assert checkpoint.read_progress(folder, US).batches_offset == 7


def test_old_ones_go_and_the_newest_by_number_stays(tmp_path: Path) -> None:
    for step in range(99_999_996, 100_000_001):
        newest = write(tmp_path, step, keep=2)
    assert checkpoint.latest(tmp_path) == newest
    assert checkpoint.steps(tmp_path) == [99_999_999, 100_000_000]
    write(tmp_path, 100_000_001, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100000001"]
    with pytest.raises(CheckpointError, match="never overwritten"):
        checkpoint.begin(tmp_path, 100_000_001)


def test_what_a_crash_left_is_cleared(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (checkpoint.begin(tmp_path, 2) / "model").write_text("half")
    with checkpoint.exclusive(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "step-00000001"]


def test_everything_is_flushed_before_and_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    genuine_fsync, genuine_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        genuine_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    def rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return genuine_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    write(tmp_path, 1)
    at = events.index("rename")
    assert set(events[:at]) == {"model", "progress.json", ".partial-step-00000001"}
    assert events[at - 1] == ".partial-step-00000001"
    assert events[at + 1 :] == [tmp_path.name]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "model").write_text("short"), id="a file changed size"),
        pytest.param(lambda folder: (folder / "model").unlink(), id="a file is gone"),
        pytest.param(lambda folder: (folder / "progress.json").unlink(), id="no progress"),
        pytest.param(lambda folder: (folder / "progress.json").write_text("{"), id="progress is not JSON"),
        pytest.param(lambda folder: (folder / "progress.json").write_text("{}"), id="progress lacks fields"),
    ],
)
def test_damage_is_told_with_the_way_out(tmp_path: Path, damage: object) -> None:
    folder = write(tmp_path, 1)
    damage(folder)  # type: ignore[operator]  # a lambda of the table
    with pytest.raises(CheckpointError, match=r"step-00000001 is damaged.*remove"):
        checkpoint.read_progress(folder, US)


@pytest.mark.parametrize("other", [{"dtype": "torch.bfloat16"}, {"engine": "torch"}])
def test_another_engine_or_type_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    folder = write(tmp_path, 1)
    with pytest.raises(CheckpointError, match="start with the same, or with this folder as model_path"):
        checkpoint.read_progress(folder, US.model_copy(update=other))


def test_one_trainer_at_a_time_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from trinity_bus.training import checkpoint

with checkpoint.exclusive(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match="in use by another trainer"), checkpoint.exclusive(tmp_path):
            pytest.fail("two trainers hold one directory")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with checkpoint.exclusive(tmp_path):
        assert checkpoint.latest(tmp_path) is None


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, trinity_bus.training.checkpoint, trinity_bus.training.steps.samples, trinity_bus.training.engine\n"
        "import trinity_bus.training.steps.packing, trinity_bus.training.steps.step_plan\n"
        "import trinity_bus.training.ranks.followers, workers.trainer.service\n"
        "from trinity_bus.config import TrainerSettings; from trinity_bus.training.objectives import registry\n"
        "registry.check(TrainerSettings())\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
