"""What stages learn from, and that all of them are checked before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.training.objectives.losses import DPO
from trinity_bus.training.stages import Stage
from workers.trainer.service import learned_from, planned

SFT = {"stage": "sft", "loss": "sft", "total_steps": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("planned") / "model")


def settings(model: Path, *stages: dict[str, Any], **trainer: Any) -> Settings:
    values = {"model_path": str(model), "checkpoint_dir": Path("checkpoints"), "stages": list(stages)}
    return Settings(mesh={"model_path": str(model)}, trainer=TrainerSettings(**values | trainer))


def test_each_stage_learns_from_what_its_loss_says(model: Path) -> None:
    told = planned(settings(model, SFT, {**SFT, "stage": "dpo", "loss": "dpo"}, {"stage": "rl"}))
    assert [(stage.name, topic.name) for stage, topic in told] == [
        ("sft", "demonstrations"), ("dpo", "preferences"), ("rl", "batches")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"loss": "pp0"}, r"^trainer\.stages: rl: trainer\.loss='pp0' is not known; did you mean 'ppo'"),
        ({"advantage": "magic"}, r"^trainer\.stages: rl: trainer\.advantage='magic' is not known"),
        ({"correction": "mask"}, r"^trainer\.stages: rl: trainer\.correction='mask' is not known"),
        ({"kl_placement": "reward"}, r"^trainer\.stages: rl: trainer\.advantage='grpo' knows no rewards of tokens"),
        ({"engine": "torch", "data_parallel": 2}, r"^trainer\.stages: rl: trainer\.engine=torch trains on one rank"),
        ({"tensor_parallel": 3}, r"^trainer\.stages: rl: tensor_parallel=3 does not divide the model's"),
        ({"router_replay": True}, r"^trainer\.stages: rl: router_replay=true: the model has no experts"),
    ],
)
def test_what_is_wrong_with_a_later_stage_is_said_before_the_first_begins(
    model: Path, last: dict[str, Any], why: str
) -> None:
    with pytest.raises(TrinityError, match=why):
        planned(settings(model, SFT, {"stage": "rl", **last}))


def test_what_is_wrong_where_there_are_no_stages_names_none(model: Path) -> None:
    with pytest.raises(TrinityError, match=r"^tensor_parallel=3 does not divide"):
        planned(settings(model, tensor_parallel=3))


def test_a_loss_that_needs_pairs_learns_from_preferences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Settings().model_copy(update={"trainer": TrainerSettings(loss="dpo")})
    stage = Stage("", told, Path("checkpoints"), is_last=True)
    assert learned_from(stage).name == "preferences"
    monkeypatch.setattr(DPO, "learns_from", "experiences")
    with pytest.raises(ConfigError, match="'dpo' needs pairs, and learns from experiences, which have none"):
        learned_from(stage)
