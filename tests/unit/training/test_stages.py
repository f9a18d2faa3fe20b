"""Stages are settings of their own, and what cannot be is refused before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest

from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.training.stages import stages_of

DIRECTORY = Path("checkpoints")


def settings(*stages: dict[str, Any], **trainer: Any) -> Settings:
    return Settings().model_copy(update={"trainer": TrainerSettings(**{"stages": list(stages), **trainer})})


def test_each_has_the_settings_of_the_section_but_what_it_says() -> None:
    told = settings({"stage": "sft", "loss": "sft", "total_steps": 10, "learning_rate": 0.1}, {"stage": "grpo"}, seed=7)
    first, last = stages_of(told, DIRECTORY)
    assert (first.name, first.directory, first.is_last) == ("sft", DIRECTORY / "sft", False)
    assert (first.writer, last.writer) == ("trainer-0/sft", "trainer-0/grpo"), "each step has a key of its own"
    assert (last.name, last.directory, last.is_last) == ("grpo", DIRECTORY / "grpo", True)
    ours = first.settings.trainer
    assert (ours.loss, ours.total_steps, ours.learning_rate, ours.seed, ours.stages) == ("sft", 10, 0.1, 7, [])
    assert last.settings.trainer == told.trainer.model_copy(update={"stages": []})
    assert last.starting_from(Path("made")).settings.trainer.model_path == "made"


def test_without_stages_there_is_one() -> None:
    told = settings()
    (only,) = stages_of(told, DIRECTORY)
    assert only.writer == "trainer-0"
    assert (only.name, only.settings, only.directory, only.is_last) == ("", told, DIRECTORY, True)


SFT = {"stage": "sft", "loss": "sft", "total_steps": 1}


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ([{"loss": "sft"}], r"stages\[0\].stage is None"),
        ([SFT, SFT], r"stages\[1\].stage is 'sft'"),
        ([{**SFT, "stage": "../up"}], "a plain word"),
        ([{**SFT, "stage": ".hidden"}], "a plain word"),
        ([{"stage": "sft"}, {"stage": "grpo"}], "sft needs total_steps: grpo begins where it ends"),
        ([{**SFT, "learning_rat": 0.1}], "sft: learning_rat: Extra inputs are not permitted"),
        ([{**SFT, "learning_rate": -1}], "sft: learning_rate: Input should be greater than 0"),
        ([{**SFT, "checkpoint_dir": "x"}], "sft cannot change checkpoint_dir"),
        ([{**SFT, "save_as_hf": "never"}, {"stage": "rl"}], "sft needs save_as_hf, last or always: rl begins"),
    ],
)
def test_what_cannot_be_is_refused(stages: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        stages_of(settings(*stages), DIRECTORY)
