"""What must hold of every compose file, without Docker: pinned, confined, bounded, watched, local."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.mesh.compose_files import (
    DEFAULTS,
    FILES,
    FOLDER,
    GIVEN,
    MADE,
    ONE_SHOTS,
    ROOT,
    SPEECHLESS,
    VARIABLE,
    filled,
    parsed,
    services,
)
from trinity_bus.bus.administration.access import USERS
from trinity_bus.config import CONFIG_VARIABLE, Settings, env_name, setting_fields
from trinity_bus.config.sections import Sections
from trinity_bus.config.template import SCHEMA
from trinity_bus.sizing.memory import limit_bytes, service_memory
from trinity_bus.training.families import read_shape
from workers.demo.model import make_model
from workers.preconditions import PRECONDITIONS, problems
from workers.taskset.dataset import load

SERVICES = pytest.mark.parametrize(
    ("name", "service"), [pytest.param(name, service, id=f"{file}:{name}") for file, name, service in services()]
)


@SERVICES
def test_every_service_is_pinned_confined_bounded_and_started_again(name: str, service: dict[str, Any]) -> None:
    image = filled(service["image"])
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+\S*", image), f"{name} runs {image}"
    assert service.get("read_only") is True, f"{name} can write to its root file system"
    assert service.get("cap_drop") == ["ALL"]
    assert "no-new-privileges:true" in service.get("security_opt", [])
    assert not service.get("privileged", False)
    assert "mem_limit" in service, f"{name} may take all memory"
    assert service["restart"] == ("no" if name in ONE_SHOTS else "unless-stopped")
    # An init process, so that signals reach the services of ours.
    assert service.get("init") is True or not service["image"].startswith("trinity-bus/")


def test_limits_of_memory_follow_from_the_formula(tmp_path: Path) -> None:
    """For the tiny model that the stack trains."""
    mesh = Sections(**tomllib.loads((FOLDER / "mesh.toml").read_text()))
    shape, found = read_shape(make_model(tmp_path, seed=0)), parsed(FOLDER / "compose.yaml")["services"]
    for name in ("coordinator", "explorer", "trainer", "gateway", "console", "taskset"):
        limit = limit_bytes(service_memory(name, mesh, shape))
        assert filled(found[name]["mem_limit"]) == f"{limit >> 20}m", name


def test_kafkas_heap_leaves_room_in_its_memory() -> None:
    """For Java's own needs, and for a tool beside it with a heap of the same options."""
    kafka = parsed(FOLDER / "compose.yaml")["services"]["kafka"]
    (heap,) = re.findall(r"-Xmx(\d+)m", kafka["environment"]["KAFKA_HEAP_OPTS"])
    (limit,) = re.findall(r"^(\d+)m$", kafka["mem_limit"])
    assert 2 * int(heap) < int(limit)


def test_services_load_beside_kafka_and_none_waits_until_it_is_healthy() -> None:
    """They wait for it themselves, and load for as long as it starts. Without rights nobody else makes topics first."""
    for name, service in parsed(FOLDER / "compose.yaml")["services"].items():
        needs = {other: need["condition"] for other, need in service.get("depends_on", {}).items()}
        assert needs.get("kafka", "service_started") == "service_started", name
        assert "kafka" in needs or name in {"kafka", *ONE_SHOTS}
    for name, service in parsed(FOLDER / "compose.secure.yaml")["services"].items():
        if name not in {"kafka", *ONE_SHOTS}:
            assert service["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}, name


def test_kafka_can_run_what_it_unpacks() -> None:
    """Else it fails at the first record that is packed with zstd or snappy: a tmpfs is noexec unless told otherwise."""
    kafka = parsed(FOLDER / "compose.yaml")["services"]["kafka"]
    folders = set(
        re.findall(r"-D(?:org\.xerial\.snappy\.tempdir|ZstdTempFolder)=(\S+)", kafka["environment"]["KAFKA_OPTS"])
    )
    assert len(re.findall("-D", kafka["environment"]["KAFKA_OPTS"])) == 2
    (mount,) = [entry.split(":") for entry in kafka["tmpfs"] if entry.split(":")[0] in folders]
    assert folders == {mount[0]}
    assert "exec" in mount[1].split(",")
    for path in FILES:
        assert "KAFKA_OPTS" not in parsed(path).get("services", {}).get("kafka", {}).get("environment", {}) or (
            path.name == "compose.yaml"
        ), f"{path.name} would take them away"


@SERVICES
def test_every_service_says_whether_it_is_healthy(name: str, service: dict[str, Any]) -> None:
    check = service.get("healthcheck")
    if name in SPEECHLESS:
        assert check is None
    elif name in ONE_SHOTS:
        assert check == {"disable": True}, f"{name} ends, and would be called unhealthy"
    elif service["image"].startswith("trinity-bus/") and "entrypoint" not in service:
        assert check is None, f"{name} has the check of its image, see the Dockerfile"
    else:
        assert check is not None, f"nobody notices when {name} does not work"
        assert check["test"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_ports_are_on_the_loopback_interface_and_settings_and_mounted_files_exist(path: Path) -> None:
    known = {env_name(path) for path in setting_fields()} | {CONFIG_VARIABLE}
    for name, service in parsed(path).get("services", {}).items():
        for port in service.get("ports", []):
            assert filled(port).startswith("127.0.0.1:"), f"{name} listens on {port}"
        ours = {variable for variable in service.get("environment") or {} if variable.startswith("TRINITY_BUS_")}
        assert ours <= known, f"{name}: {sorted(ours - known)}"
        for volume in service.get("volumes", []):
            source = filled(str(volume).split(":", 1)[0]) if "MODEL_DIR" not in str(volume) else "model"
            if source.startswith("./secrets/"):
                assert f'"$out/{Path(source).name}"' in (FOLDER / "secure.sh").read_text()
            elif source.startswith("."):
                assert (FOLDER / source).exists(), f"{name} mounts {source}"
                assert str(volume).endswith(":ro")


@pytest.mark.parametrize(
    "files", [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")], ids=lambda files: files[-1]
)
@pytest.mark.parametrize("name", sorted(PRECONDITIONS))
@pytest.mark.usefixtures("no_settings")
def test_every_service_can_start_with_its_file_and_its_variables(
    files: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [parsed(FOLDER / file) for file in files]
    base = layers[0]["services"][name]
    source = FOLDER / layers[-1]["configs"]["mesh"]["file"]
    assert base["configs"] == [{"source": "mesh", "target": base["environment"]["TRINITY_BUS_CONFIG"]}]
    for layer in layers:
        for variable, value in layer["services"].get(name, {}).get("environment", {}).items():
            monkeypatch.setenv(variable, filled(str(value)))
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(source))
    # Files that are in the containers alone.
    if "TRINITY_BUS_TASKSET__PATH" in os.environ:
        monkeypatch.setenv("TRINITY_BUS_TASKSET__PATH", __file__)
    settings = Settings()
    assert problems(name, settings) == []
    assert settings.mesh.model_path == ("/model/tiny" if len(files) == 1 else "/models/own")


def test_files_of_settings_name_their_schema_and_the_demo_tasks_lie_where_they_are_looked_for() -> None:
    found = {path.name for path in FOLDER.glob("*.toml")}
    assert found == {"mesh.toml", "mesh.gpu.toml"}
    for name in found:
        first = (FOLDER / name).read_text().splitlines()[0]
        assert (FOLDER / first.removeprefix("#:schema ")).resolve() == SCHEMA
    environment = parsed(FOLDER / "compose.yaml")["services"]["taskset"]["environment"]
    inside = environment["TRINITY_BUS_TASKSET__PATH"].partition("/site-packages/")[2]
    sets = load(ROOT / inside, taskset="taskset-0")
    assert sets.train is not None
    assert (sets.train.size, [len(one.tasks) for one in sets.evals]) == (800, [200])


def test_every_variable_has_a_default_or_a_value_from_the_script_and_is_used() -> None:
    used = {match[1] for path in FILES for match in VARIABLE.finditer(path.read_text())}
    assert used == set(DEFAULTS) | MADE | GIVEN
    script = (FOLDER / "secure.sh").read_text()
    assert f"users=({' '.join(USERS)})" in script
    assert re.search(r"for name in kafka root; do\n +echo .*_CERTIFICATE=", script)
    secure = {match[1] for match in VARIABLE.finditer((FOLDER / "compose.secure.yaml").read_text())}
    assert secure >= MADE


def stages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    for line in text.splitlines():
        if match := re.fullmatch(r"FROM \S+ AS (\S+)", line):
            current = found.setdefault(match[1], [])
        elif found and line and not line.startswith("#"):
            current.append(line)
    return found


@pytest.mark.parametrize("target", ["base", "explorer", "trainer"])
def test_every_image_is_not_root_gets_signals_and_has_a_check_of_its_health(target: str) -> None:
    stage = stages()[target]
    assert "USER 10001:10001" in stage
    assert 'ENTRYPOINT ["trinity-bus"]' in stage
    (check,) = [line for line in stage if line.startswith("HEALTHCHECK")]
    command = re.search(r'CMD \["bash", "/usr/local/lib/python3.12/site-packages/(\S+)"\]$', check)
    assert command
    assert (ROOT / command[1]).is_file()


def test_code_comes_after_all_packages() -> None:
    for name, stage in stages().items():
        copies = [line for line in stage if line.startswith(("COPY", "ADD"))]
        assert not copies or name == "wheel", f"{name} copies files: a change of them would install packages again"
