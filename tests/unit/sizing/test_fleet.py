"""What so many GPUs do: shapes held against their names, bytes against encoded records, and the rest against sense."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas import Dispatch, Record, RolloutFinished, Task, TaskResult
from schemas.codec import encode
from tests.unit.sizing.test_sizing import QWEN3_0_6B, QWEN3_30B
from trinity_bus.config import CoordinatorSettings, MeshSettings, SynchronizerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.fleet import (
    ORDER_BYTES,
    RESULT_BYTES,
    TASK_BYTES,
    SizeError,
    SizingInput,
    active_parameters,
    sized,
)
from trinity_bus.sizing.hardware import GPUS
from trinity_bus.sizing.memory import MODELS, parameters
from workers.cli.size import app

ASK = SizingInput(
    gpus=64,
    gpu=GPUS["H100"],
    shape=MODELS["32B"],
    settings=Sections(
        mesh=MeshSettings(max_model_len=16_384, max_tokens=8192), coordinator=CoordinatorSettings(max_staleness=4)
    ),
    prompt_tokens=512,
    response_tokens=4096,
)
WHO: Any = {"explorer": "explorer-0", "incarnation": "0123456789ab"}
OF: Any = {"task_id": "task-000123456", "batch_id": "train-000123", "batch_type": "train"}


def values(ask: SizingInput) -> dict[str, float]:
    return {figure.name: figure.value for figure in sized(ask)}


def test_a_shape_by_name_is_that_of_the_published_configuration() -> None:
    assert MODELS["0.6B"] == QWEN3_0_6B
    assert MODELS["30B-A3B"] == QWEN3_30B


@pytest.mark.parametrize("name", MODELS)
def test_shapes_have_as_many_parameters_as_their_names_say(name: str) -> None:
    whole, _, active = name.partition("-A")
    assert parameters(MODELS[name]) == pytest.approx(float(whole.removesuffix("B")) * 1e9, rel=0.08)
    if active:
        assert active_parameters(MODELS[name]) == pytest.approx(float(active.removesuffix("B")) * 1e9, rel=0.15)


def test_records_are_as_large_as_is_reckoned_with() -> None:
    def size(record: Record) -> int:
        return len(encode(record))

    task = Task(task_id="task-000123456", workflow="math", prompt="x" * 1000, answer="42")
    assert size(task) - 1000 == pytest.approx(TASK_BYTES, rel=0.1)
    order = Dispatch(**WHO, task=task, attempt=1, batch_id="b" * 12, batch_type="train", repeat_times=8, timeout_s=6e2)
    assert size(order) - 1000 == pytest.approx(ORDER_BYTES, rel=0.1)
    metrics = [{"reward": 1.0, "time/run_execution": 1.2, "response_length": 100}] * 8
    runs: Any = {"status": "completed", "completed_runs": 8, "total_runs": 8, "metrics": metrics}
    said = size(RolloutFinished(**WHO, **OF, attempt=1, **runs)) + size(
        TaskResult(**OF, **(runs | {"metrics": metrics[0]}), seconds=1.5, attempts=1)
    )
    assert said < RESULT_BYTES < 2 * said, "a manifest's entry, and the step's, are counted with these two"


@given(gpus=st.integers(64, 2048), more=st.integers(1, 64), response=st.integers(16, 8192))
def test_more_gpus_never_do_less_and_none_is_used_twice(gpus: int, more: int, response: int) -> None:
    ask = replace(ASK, gpus=gpus, response_tokens=response)
    fewer, larger = values(ask), values(replace(ask, gpus=gpus + more))
    assert larger["samples"] >= fewer["samples"] * (1 - 1e-9)
    (explorers,) = (figure for figure in sized(ask) if figure.name == "explorers")
    assert fewer["trainer"] + explorers.value * int(explorers.unit.split()[1]) == gpus


def test_what_was_measured_is_taken_instead_of_what_is_computed() -> None:
    measured = replace(ASK, rollout_tokens_s=1000.0, train_tokens_s=1500.0)
    found = values(measured)
    tokens_s = found["explorers"] * 2 * 1000 * 0.85
    assert found["samples"] == pytest.approx(min(tokens_s / 4096, found["trainer"] // 4 * 4 * 1500 / 4608))


def test_weights_that_are_passed_on_leave_the_trainer_once() -> None:
    def seconds(**synchronizer: object) -> dict[str, float]:
        chosen = SynchronizerSettings.model_validate({"sync_method": "memory"} | synchronizer)
        return values(replace(ASK, settings=ASK.settings.model_copy(update={"synchronizer": chosen})))

    alone, passed_on = seconds(sync_fan_out=False), seconds()
    assert alone["sync of a version"] == pytest.approx(passed_on["sync of a version"] * alone["explorers"], rel=0.01)


def test_on_policy_explorers_and_trainer_wait_for_each_other() -> None:
    settings = ASK.settings.model_copy(update={"coordinator": CoordinatorSettings(max_staleness=0)})
    on_policy = values(replace(ASK, settings=settings))
    assert on_policy["samples"] < values(ASK)["samples"] / 2
    assert on_policy["staleness"] == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"gpus": 4}, "with 4 GPUs the trainer has 3 at most, .*--gpus"),
        ({"shape": MODELS["235B-A22B"], "gpu": GPUS["L40S"], "gpus": 1024}, "cannot hold this model"),
    ],
)
def test_what_does_not_fit_is_said(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SizeError, match=told):
        sized(replace(ASK, **changed))


def test_the_command_prints_json_and_refuses_models_that_are_none() -> None:
    done = CliRunner().invoke(app, ["--gpus", "64", "--model", "32B", "--json"])
    assert [figure["name"] for figure in json.loads(done.output)] == [figure.name for figure in sized(ASK)]
    refused = CliRunner().invoke(app, ["--gpus", "64", "--model", "33B"])
    assert refused.exit_code == 2
    assert "0.6B" in refused.output
