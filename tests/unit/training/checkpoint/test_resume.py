"""Settings that shape training, and what is said of those that are others when training goes on."""

from pathlib import Path
from typing import Any

import pytest

from trinity_bus.config import MeshSettings, TrainerSettings
from trinity_bus.config.sections import is_secret
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError

KEY = "sk-0123456789"


def shaping(*, mesh: dict[str, Any] | None = None, **trainer: Any) -> checkpoint.Shaping:
    return checkpoint.shaping(MeshSettings(**mesh or {}), TrainerSettings(**trainer))


def test_what_shapes_training_is_recorded_and_what_does_not_is_not() -> None:
    others = {
        *("name", "role", "shadows", "host", "weights_port", "ranks_host", "ranks_port", "ranks_key", "bucket_mib"),
        *("heartbeat_s", "token_figures", "total_steps", "export_dir", "model_path", "max_tokens", "dtype", "engine"),
        *("checkpoint_dir", "publish", "adapter_rank", "checkpoint_interval", "keep_checkpoints", "save_as_hf"),
        *("objective_options", "optimizer_options", "stages", "checkpoint_url"),
    }
    own = {f"trainer.{name}" for name in TrainerSettings.model_fields if name not in others}
    assert set(shaping()) == own | {"mesh.model", "mesh.max_model_len", "mesh.max_tokens"}


def test_each_difference_is_a_line() -> None:
    before = shaping(learning_rate=1e-3, loss="ppo", dual_clip=None, objective_options={"beta": 1, "gone": True})
    after = shaping(
        mesh={"max_tokens": 100},
        learning_rate=2e-3,
        loss="gspo",
        dual_clip=3.0,
        advantage_std="none",
        objective_options={"beta": 2},
        optimizer_options={"adam_eps": 1e-6, "more": [1, {"a": "b"}]},
        total_steps=9,
    )
    assert checkpoint.differences(before, before) == []
    assert checkpoint.differences(before, after) == [
        "mesh.max_tokens: 256 -> 100",
        "trainer.learning_rate: 0.001 -> 0.002",
        "trainer.loss: ppo -> gspo",
        "trainer.advantage_std: group -> none",
        "trainer.dual_clip: unset -> 3.0",
        "trainer.objective_options.beta: 1 -> 2",
        "trainer.optimizer_options.adam_eps: unset -> 1e-06",
        'trainer.optimizer_options.more: unset -> [1, {"a": "b"}]',
        "trainer.objective_options.gone: true -> unset",
    ]


def test_settings_that_one_of_the_two_programs_does_not_know_are_said() -> None:
    now = shaping()
    before = {name: value for name, value in now.items() if name != "trainer.seed"} | {"trainer.former": 3}
    assert checkpoint.differences(before, now) == [
        "trainer.seed: not recorded -> 0",
        "trainer.former: 3 -> not recorded",
    ]


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        (shaping(), shaping(mesh={"model": "other"}, seed=3), r"^mesh\.model: policy -> other: .*MESH__NAMESPACE"),
        (
            shaping(lora_rank=8, lora_alpha=32),
            shaping(lora_rank=8, lora_alpha=16),
            r"^trainer\.lora_alpha: 32\.0 -> 16\.0: .*set it again",
        ),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_in_a_line(
    before: checkpoint.Shaping, after: checkpoint.Shaping, refusal: str
) -> None:
    with pytest.raises(CheckpointError, match=refusal) as refused:
        checkpoint.differences(before, after)
    assert "\n" not in str(refused.value)
    assert checkpoint.differences(shaping(lora_alpha=32), shaping(lora_alpha=16)) == [
        "trainer.lora_alpha: 32.0 -> 16.0"
    ]


def test_no_secret_is_recorded() -> None:
    before, after = (shaping(objective_options={"key": key}) for key in (KEY, f"{KEY}-new"))
    assert KEY not in repr(before)
    (line,) = checkpoint.differences(before, after)
    assert line.startswith("trainer.objective_options.key: text ")
    assert KEY not in line
    secret = {f"trainer.{name}" for name, field in TrainerSettings.model_fields.items() if is_secret(field)}
    assert secret.isdisjoint(before)


@pytest.mark.parametrize("value", [True, 3, 10**400, 0.1, float("inf"), float("nan"), "text"])
def test_a_checkpoint_gives_back_what_was_recorded(tmp_path: Path, value: Any) -> None:
    ours, by = shaping(objective_options={"value": value}), WrittenBy(dtype="torch.float32")
    checkpoint.begin(tmp_path, 1)
    folder = checkpoint.commit(tmp_path, TrainingProgress(step=1, settings=ours), by, keep=1)
    read = checkpoint.read_progress(folder, by).settings
    assert read == ours
    assert [type(each) for each in read.values()] == [type(each) for each in ours.values()]
