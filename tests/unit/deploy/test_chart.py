"""What must hold of the Helm chart without Helm: settings that services start with, images, users, metrics."""

import re
import tomllib

import pytest
import yaml

from tests.support.chart import CHART, ROOT, SIZES, values
from tests.support.mesh.compose_files import DEFAULTS
from trinity_bus.bus.administration.access import USERS
from trinity_bus.config import CONFIG_VARIABLE, Settings, env_name, secret_variables, setting_fields
from workers.coordinator.observations import GAUGES
from workers.preconditions import problems
from workers.taskset.dataset import load

TEMPLATES = "\n".join(path.read_text() for path in sorted(CHART.glob("templates/*")))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("no_settings")
def test_every_service_can_start_with_the_settings_of_every_size(size: str) -> None:
    given = values(size)
    content = given["settings"]
    if "path" in content["taskset"]:
        # A file that is in the image alone.
        content["taskset"]["path"] = __file__
    settings = Settings(**content)
    services = ["coordinator", "explorer", "trainer", *(["taskset"] if given["taskset"]["enabled"] else [])]
    assert [problem for name in services for problem in problems(name, settings)] == []
    assert settings.mesh.model_path is not None
    assert settings.mesh.model_path.startswith("/model/tiny" if given["model"]["claim"] == "" else "/model/")
    assert given["weights"]["tls"]["enabled"] <= (settings.synchronizer.sync_method == "memory")


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_and_every_explorer_has_the_gpus_that_its_settings_ask_for(size: str) -> None:
    given = values(size)
    trainer, explorer = given["settings"]["trainer"], given["settings"]["explorer"]
    ranks = trainer.get("tensor_parallel", 1) * trainer.get("data_parallel", 1)
    limits = [given[name]["resources"]["limits"].get("nvidia.com/gpu", 0) for name in ("trainer", "explorer")]
    asked = (
        [ranks // given["trainer"]["nodes"], explorer.get("tensor_parallel_size", 1)]
        if given["device"] == "gpu"
        else [0, 0]
    )
    assert limits == asked


@pytest.mark.parametrize(("size", "gpus"), [("8-gpus", 8), ("64-gpus", 64)])
def test_a_size_uses_the_gpus_that_its_name_says(size: str, gpus: int) -> None:
    given = values(size)
    explorers = given["scaling"]["max"] if given["scaling"]["enabled"] else given["explorer"]["replicas"]
    each = given["explorer"]["resources"]["limits"]["nvidia.com/gpu"]
    trainer = given["trainer"]["resources"]["limits"]["nvidia.com/gpu"] * given["trainer"]["nodes"]
    assert trainer + explorers * each == gpus


def test_images_a_metric_and_the_demo_tasks_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert values("one-node")["image"]["tag"] == chart["appVersion"] == project["version"]
    assert DEFAULTS["IMAGE_VERSION"] == project["version"]
    (name,) = re.findall(r"rl_\w+", values("64-gpus")["scaling"]["query"])
    assert name in {gauge.replace(".", "_") for gauge, *_ in GAUGES}
    inside = values("one-node")["settings"]["taskset"]["path"].partition("/site-packages/")[2]
    assert load(ROOT / inside, taskset="taskset-0").train is not None


def test_what_the_templates_set_is_a_setting_a_secret_is_a_file_and_a_role_is_a_user() -> None:
    known = {env_name(path) for path in setting_fields()} | {CONFIG_VARIABLE}
    known |= {f"{name}_FILE" for name in secret_variables()}
    assert set(re.findall(r"TRINITY_BUS_[A-Z_]+[A-Z]", TEMPLATES)) <= known
    direct = [name for name in secret_variables() if re.search(rf"name: {name}[,}}]", TEMPLATES)]
    assert direct == []
    services = set(re.findall(r'(?:"service.pod" \(|pod := )dict "root" \. "name" "(\w+)"(?! "role")', TEMPLATES))
    assert services == {"coordinator", "explorer", "trainer", "gateway", "taskset"}
    assert services | set(re.findall(r'"role" "(\w+)"', TEMPLATES)) <= set(USERS)
