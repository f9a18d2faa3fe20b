"""Stages: their settings, what they learn from, that all of them are checked before anything is loaded, and which
examples a step takes.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes.tiny_trainer import write_model
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.training.objectives.losses import DPO
from trinity_bus.training.stages import Stage, stages_of
from workers.trainer.examples import chosen
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


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_each_epoch_has_every_example_once(count: int, per_step: int, seed: int) -> None:
    places = [place for step in range(1, 9) for place in chosen(count, per_step, seed=seed, step=step)]
    assert len(places) == 8 * per_step
    for begin in range(0, len(places) - count + 1, count):
        assert sorted(places[begin : begin + count]) == list(range(count))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(chosen(20, 20, seed=seed, step=step)) for seed in (0, 1) for step in (1, 2, 3)}
    assert len(orders) == 6


DIRECTORY = Path("checkpoints")


def staged(*stages: dict[str, Any], **trainer: Any) -> Settings:
    return Settings().model_copy(update={"trainer": TrainerSettings(**{"stages": list(stages), **trainer})})


def test_each_has_the_settings_of_the_section_but_what_it_says() -> None:
    told = staged({"stage": "sft", "loss": "sft", "total_steps": 10, "learning_rate": 0.1}, {"stage": "grpo"}, seed=7)
    first, last = stages_of(told, DIRECTORY)
    assert (first.name, first.directory, first.is_last) == ("sft", DIRECTORY / "sft", False)
    assert (first.writer, last.writer) == ("trainer-0/sft", "trainer-0/grpo"), "each step has a key of its own"
    assert (last.name, last.directory, last.is_last) == ("grpo", DIRECTORY / "grpo", True)
    ours = first.settings.trainer
    assert (ours.loss, ours.total_steps, ours.learning_rate, ours.seed, ours.stages) == ("sft", 10, 0.1, 7, [])
    assert last.settings.trainer == told.trainer.model_copy(update={"stages": []})
    assert last.starting_from(Path("made")).settings.trainer.model_path == "made"
    # Without stages there is one.
    (only,) = stages_of(staged(), DIRECTORY)
    assert only.writer == "trainer-0"
    assert (only.name, only.settings, only.directory, only.is_last) == ("", staged(), DIRECTORY, True)


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
        stages_of(staged(*stages), DIRECTORY)
