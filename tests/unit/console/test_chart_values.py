import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings

from tests.support.chart import CHART
from tests.support.console.answers import CHECKS, SOUND, random_answers
from trinity_bus.config import setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.console.configuration.chart import CHART_SAYS, OF_THIS_MACHINE, blocks, chart_values
from trinity_bus.console.configuration.questions import draft_of

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
PLACED = {"mesh.model_path", "trainer.checkpoint_dir", "taskset.path"}
GPUS = {"hardware.trainer_gpus": "4", "hardware.explorer_gpus": "4"}


def values(**answers: str) -> dict[str, Any]:
    found = CHECKS(
        draft_of({**SOUND, **{name.replace("__", "."): text for name, text in answers.items()}}), lay_out=True
    )
    assert found.is_sound, found.problems
    read = yaml.safe_load(chart_values(found))
    jsonschema.validate(read, SCHEMA)
    return read


def test_what_the_chart_itself_gives_is_what_its_schema_refuses() -> None:
    taken = {
        f"{section}.{name}"
        for section, where in SCHEMA["properties"]["settings"]["properties"].items()
        for name in SCHEMA["$defs"][where["$ref"].rpartition("/")[2]]["properties"]
    }
    assert {path for path, info in setting_fields().items() if not is_secret(info)} - taken == CHART_SAYS


def test_settings_become_values_with_the_paths_of_pods() -> None:
    read = values(mesh__namespace="mine", kafka__bootstrap_servers="127.0.0.1:9092", trainer__learning_rate="1e-06")
    assert read["settings"] == {
        "mesh": {"namespace": "mine", "model_path": "/model/small"},
        "trainer": {"checkpoint_dir": "/checkpoints", "learning_rate": 1e-6},
    }
    assert read["device"] == "cpu"
    assert "taskset" not in read
    read = values(
        rows__path="a.parquet", rows__prompt="q", rows__workflow="math", access__producer_write_bytes_s="1000"
    )
    assert read["settings"]["taskset"]["path"] == "/tasks/tasks.toml"
    assert read["taskset"]["extraVolumeMounts"][0]["mountPath"] == "/tasks"
    assert read["kafka"]["producerQuotas"] == {"producerByteRate": 1000}
    assert "access" not in read["settings"]
    alone = values(mesh__mode="explore")
    assert not alone["trainer"]["enabled"]
    assert alone["explorer"]["replicas"] == 1
    read = values(mesh__model_path="/a/small", explorer__model_path="/b/small", gateway__model_path="/a/small")
    told = [read["settings"][section]["model_path"] for section in ("mesh", "explorer", "gateway")]
    assert told == ["/model/small", "/model/small-2", "/model/small"]


def test_gpus_become_resources_of_each_pod() -> None:
    read = values(**GPUS, explorer__tensor_parallel_size="2")
    assert read["device"] == "gpu"
    assert read["explorer"]["replicas"] == 2
    for name, gpus in (("trainer", 4), ("explorer", 2)):
        assert {of["nvidia.com/gpu"] for of in read[name]["resources"].values()} == {gpus}
    assert read["settings"]["trainer"]["data_parallel"] == 4


def test_a_file_of_tasks_is_looked_for_in_its_claim(tmp_path: Path) -> None:
    path = tmp_path / "t: [x\n.jsonl"
    path.touch()
    assert values(taskset__path=str(path))["settings"]["taskset"]["path"] == f"/tasks/{path.name}"


@pytest.mark.parametrize("text", ["null", "1e3", "a: b # c", "\x7f\u2028é'\"\\", "[{", "- x", "a\nmesh: {}"])
def test_a_text_is_read_as_it_was_given(text: str) -> None:
    assert yaml.safe_load(blocks({"text": text})) == {"text": text}


def test_paths_of_this_machine_stay_here_and_are_named() -> None:
    own = {"trainer__export_dir": "/home/me/out", "telemetry__run_dir": "/home/me/run"}
    read = values(**own)
    assert ("export_dir" in read["settings"]["trainer"], "telemetry" in read["settings"]) == (False, False)
    answers = {**SOUND, **{name.replace("__", "."): text for name, text in own.items()}}
    text = chart_values(CHECKS(draft_of(answers), lay_out=True))
    assert "telemetry.run_dir, trainer.export_dir" in text
    assert "/home/me" not in text
    paths = {path for path, info in setting_fields().items() if "Path" in repr(info) or "ExistingFile" in repr(info)}
    assert paths - {*PLACED} - CHART_SAYS == OF_THIS_MACHINE


@hypothesis_settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(random_answers())
def test_whatever_the_questions_yield_is_taken_by_the_chart(answers: dict[str, str]) -> None:
    found = CHECKS(draft_of({**SOUND, **answers}), lay_out=True)
    if not found.is_sound:
        return
    read = yaml.safe_load(chart_values(found))
    jsonschema.validate(read, SCHEMA)
    for path, value in found.draft.values.items():
        section, _, name = path.partition(".")
        assert read["settings"][section][name] == value or path in PLACED
