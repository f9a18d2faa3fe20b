"""Checkpoints as people see them: listed, verified, and as the model that is in them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError
from workers.cli.training.checkpoints import app

MODEL = {"config.json": '{"torch_dtype": "bfloat16"}', "tokenizer.json": "{}"}


def write(directory: Path, step: int, *, as_hf: bool = True) -> Path:
    folder = checkpoint.begin(directory, step)
    files = {"model.safetensors": f"weights {step}", "optimizer.safetensors": "moments", **(MODEL if as_hf else {})}
    for name, content in files.items():
        (folder / name).write_text(content)
    progress = TrainingProgress(step=step, version=step, sequence=step, batches_offset=10 * step)
    return checkpoint.commit(directory, progress, WrittenBy(dtype="torch.float32"), keep=9)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("TRINITY_BUS_TRAINER__CHECKPOINT_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.mark.parametrize("leads_to", ["secret", "/dev/zero"])
@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "config.json", "model.safetensors"])
def test_links_that_lead_out_are_not_followed_into_what_is_written(
    tmp_path: Path, command: Callable[..., Result], name: str, leads_to: str
) -> None:
    (tmp_path / "secret").write_text('{"key": "mine"}')
    weights = tmp_path / "global_step_3" / "actor" / "huggingface"
    weights.mkdir(parents=True)
    for file, content in {**MODEL, "model.safetensors": "weights"}.items():
        (weights / file).write_text(content)
    (weights / name).unlink(missing_ok=True)
    (weights / name).symlink_to(tmp_path / leads_to)
    result = command("convert", weights.parents[1], tmp_path / "out")
    assert isinstance(result.exception, CheckpointError)
    assert "leads out of the folder" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_with_a_link_is_damaged(tmp_path: Path, command: Callable[..., Result]) -> None:
    folder = write(tmp_path / "run", 1)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    assert command("verify").exit_code == 1
    (folder / "progress.json").unlink()
    (folder / "progress.json").symlink_to("/dev/zero")
    assert command("verify").exit_code == 1


def test_a_model_of_the_hubs_cache_is_made_of_links(tmp_path: Path, command: Callable[..., Result]) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "1a2b", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name, content in MODEL.items():
        (blobs / name).write_text(content)
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    write(tmp_path / "run", 1, as_hf=False)
    assert command("convert", 1, tmp_path / "out", "--model", snapshot).exit_code == 0
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()


def test_they_are_listed_oldest_first(
    tmp_path: Path, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no checkpoint" in command("list").stdout
    write(tmp_path / "run", 1)
    write(tmp_path / "run", 2, as_hf=False)
    lines = [json.loads(line) for line in command("list", "--json").stdout.splitlines()]
    assert [(line["step"], line["is_hf"], line["problem"]) for line in lines] == [(1, True, ""), (2, False, "")]
    assert lines[1]["progress"]["batches_offset"] == 20
    monkeypatch.setattr("workers.cli.training.checkpoints.out", Console(width=200))
    assert "megatron, float32" in command("list").stdout


def test_one_changed_byte_is_found(tmp_path: Path, command: Callable[..., Result]) -> None:
    write(tmp_path / "run", 1)
    damaged = write(tmp_path / "run", 2) / "optimizer.safetensors"
    assert command("verify").exit_code == 0
    damaged.write_text("momentz")
    found = command("verify")
    assert found.exit_code == 1
    assert "optimizer.safetensors is not what was written; remove it to go on from the one before it" in found.stderr
    assert command("verify", 1).exit_code == 0
    gone = command("verify", 1, 7)
    assert gone.exit_code == 1
    assert "there is no checkpoint of step 7" in gone.stderr


def test_a_checkpoint_becomes_a_model_folder(tmp_path: Path, command: Callable[..., Result]) -> None:
    write(tmp_path / "run", 3)
    assert command("convert", 3, tmp_path / "out").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*MODEL, "model.safetensors"}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"dtype": "float32"}
    again = command("convert", 3, tmp_path / "out")
    assert "nothing is overwritten" in str(again.exception)


def test_weights_alone_need_a_model_to_be_described_by(tmp_path: Path, command: Callable[..., Result]) -> None:
    folder = write(tmp_path / "run", 3, as_hf=False)
    assert "say with --model" in str(command("convert", folder, tmp_path / "out").exception)
    (tmp_path / "model").mkdir()
    for name, content in MODEL.items():
        (tmp_path / "model" / name).write_text(content)
    assert command("convert", 3, tmp_path / "out", "--model", tmp_path / "model").exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").read_text() == "weights 3"


def test_the_references_layout_there_and_back(tmp_path: Path, command: Callable[..., Result]) -> None:
    write(tmp_path / "run", 12)
    assert command("convert", 12, tmp_path / "job", "--to", "reference").exit_code == 0
    theirs = tmp_path / "job" / "global_step_12"
    assert (theirs / "actor" / "huggingface" / "model.safetensors").read_text() == "weights 12"
    assert (tmp_path / "job" / "latest_checkpointed_iteration.txt").read_text() == "12"
    assert command("convert", theirs, tmp_path / "back").exit_code == 0
    assert {path.name for path in (tmp_path / "back").iterdir()} == {*MODEL, "model.safetensors"}
    write(tmp_path / "run", 13)
    assert command("convert", 13, tmp_path / "job", "--to", "reference").exit_code == 0, "beside the other"


def test_what_is_pickled_is_not_read(tmp_path: Path, command: Callable[..., Result]) -> None:
    shards = tmp_path / "global_step_4" / "actor"
    shards.mkdir(parents=True)
    (shards / "model_world_size_1_rank_0.pt").write_bytes(b"\x80\x04.")
    assert "pickled, and not read" in str(command("convert", shards.parent, tmp_path / "out").exception)
    assert "neither a checkpoint" in str(command("convert", tmp_path, tmp_path / "out").exception)
    assert not (tmp_path / "out").exists()
