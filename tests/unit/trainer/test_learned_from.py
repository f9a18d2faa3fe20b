"""What a stage learns from has what its loss needs, or it is refused before anything is loaded."""

from pathlib import Path

import pytest

from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.training.objectives.losses.dpo import DPO
from trinity_bus.training.stages import Stage
from workers.trainer.service import learned_from


def test_a_loss_that_needs_pairs_learns_from_preferences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings().model_copy(update={"trainer": TrainerSettings(loss="dpo")})
    stage = Stage("", settings, Path("checkpoints"), is_last=True)
    assert learned_from(stage).name == "preferences"
    monkeypatch.setattr(DPO, "learns_from", "experiences")
    with pytest.raises(ConfigError, match="'dpo' needs pairs, and learns from experiences, which have none"):
        learned_from(stage)
