"""What the console writes for a draft is rendered by Helm, and pods have the GPUs and the settings of it."""

import tomllib
from pathlib import Path

import pytest

from tests.support.chart import pods_of, resources_of
from tests.support.console.answers import CHECKS, SOUND
from trinity_bus.console.configuration.chart import chart_values
from trinity_bus.console.configuration.questions import draft_of

pytestmark = pytest.mark.chart

ANSWERS = {
    "mesh.namespace": "mine",
    "trainer.learning_rate": "1e-06",
    "coordinator.max_open_bytes": "1073741824",
    "trainer.objective_options": '{ on = 1.5, "a b" = "null" }',
    "rows.path": "a.parquet",
    "rows.prompt": "question",
    "rows.workflow": "math",
}


@pytest.mark.parametrize("gpus", ["0", "2"])
def test_helm_renders_what_the_console_has_written(gpus: str, tmp_path: Path) -> None:
    hardware = {"hardware.trainer_gpus": gpus, "hardware.explorer_gpus": gpus}
    found = CHECKS(draft_of({**SOUND, **ANSWERS, **hardware}), lay_out=True)
    assert found.is_sound, found.problems
    path = tmp_path / "values.yaml"
    path.write_text(chart_values(found), encoding="utf-8")
    resources = resources_of("--values", str(path))
    (text,) = [one["data"]["mesh.toml"] for one in resources if "mesh.toml" in one.get("data", {})]
    read = tomllib.loads(text)
    assert read["mesh"] == {"namespace": "mine", "model_path": "/model/small"}
    assert read["trainer"]["learning_rate"] == 1e-6
    assert read["coordinator"]["max_open_bytes"] == 1_073_741_824
    assert read["trainer"]["objective_options"] == {"on": 1.5, "a b": "null"}
    containers = {name: pod["spec"]["containers"][0] for name, pod in pods_of(resources).items()}
    asked = {name: one["resources"]["limits"].get("nvidia.com/gpu", 0) for name, one in containers.items()}
    assert asked == {"coordinator": 0, "explorer": int(gpus > "0"), "trainer": int(gpus), "taskset": 0}
