import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, cast

import pytest

from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runtime.device import is_installed_for_cpu
from workers.demo.demo import specs
from workers.demo.preloads import Preloads
from workers.demo.settings import demo_namespace, hint, write_mesh_file
from workers.demo.subjects import SUMS, TOOLS, DemoOptions
from workers.local import service_environment

if TYPE_CHECKING:
    from trinity_bus.runtime.preload import Preload

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:9999", namespace="trinity")


@pytest.fixture
def options(no_settings: None, tmp_path: Path) -> DemoOptions:
    return DemoOptions(run_dir=tmp_path / "run", seed=7, steps=9, explorers=3, max_staleness=1)


def read(options: DemoOptions, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    with monkeypatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("TRINITY_BUS_CONFIG", str(options.mesh_file))
        return Settings()


def test_the_file_says_what_the_demo_decides(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mesh_file(options, KAFKA)
    settings = read(options, service_environment(Settings()), monkeypatch)
    assert settings.kafka.bootstrap_servers == KAFKA.bootstrap_servers
    assert settings.coordinator.max_staleness == 1
    assert settings.telemetry.run_dir == options.run_dir
    assert (settings.trainer.total_steps, settings.trainer.seed) == (9, 7)
    assert settings.explorer.seed == 7
    assert settings.explorer.model_path == str(options.model_dir)
    assert "# Tasks of a batch that sets no size.\nbatch_size = 64\n" in options.mesh_file.read_text()
    assert hint(options).endswith(f" --config {options.mesh_file}")


def test_a_subject_brings_what_is_its_own(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mesh_file(replace(options, subject=TOOLS), KAFKA)
    settings = read(options, service_environment(Settings()), monkeypatch)
    assert settings.explorer.workflow_modules == TOOLS.module
    assert settings.explorer.max_tokens == TOOLS.max_tokens
    assert settings.trainer.entropy_coef == TOOLS.entropy_coef
    kept = options.run_dir.parent / "models"
    write_mesh_file(replace(options, subject=SUMS, pretrained=kept), KAFKA)
    settings = read(options, service_environment(Settings()), monkeypatch)
    assert settings.explorer.model_path == settings.trainer.model_path == str(kept), "taught where it is kept"
    assert settings.coordinator.batch_size == SUMS.batch_size
    assert settings.trainer.learning_rate == SUMS.settings["trainer.learning_rate"]
    # Each version is in the files of a checkpoint: the step that is kept has one, and no copy lies in memory.
    assert settings.trainer.publish == "durable"


def test_what_the_user_has_set_holds_where_the_demo_does_not_decide_and_secrets_stay_out_of_the_file(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "[kafka]\nsecurity_protocol = 'SASL_PLAINTEXT'\nsasl_username = 'me'\nsasl_password = 'hunter2'\n"
        "[trainer]\nobjective_options = { 'a b' = 1, c = 'x' }\n"
    )
    own.chmod(0o600)
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(own))
    monkeypatch.setenv("TRINITY_BUS_MESH__NAMESPACE", "mine")
    monkeypatch.setenv("trinity_bus_coordinator__batch_size", "3")
    monkeypatch.setenv("TRINITY_BUS_COORDINATOR__TASK_TIMEOUT_S", "17")
    write_mesh_file(options, KAFKA)
    environment = service_environment(Settings())
    assert [name for name in environment if name.upper().startswith("TRINITY_BUS_")] == [
        "TRINITY_BUS_KAFKA__SASL_PASSWORD"
    ]
    settings = read(options, environment, monkeypatch)
    assert settings.kafka.namespace == "trinity"
    assert (settings.coordinator.batch_size, settings.coordinator.task_timeout_s) == (64, 17)
    assert settings.trainer.objective_options == {"a b": 1, "c": "x"}
    assert settings.kafka.sasl_username == "me"
    assert settings.kafka.sasl_password is not None
    assert settings.kafka.sasl_password.get_secret_value() == "hunter2"
    assert "hunter2" not in options.mesh_file.read_text()


def test_names_stages_and_what_explorers_are_told_alone(options: DemoOptions) -> None:
    shared, torch, vllm, megatron, looks_on = (
        cast("Preload", name) for name in ("shared", "torch", "vllm", "megatron", "console")
    )
    forked_from = Preloads(
        shared=shared, torch=torch, explorers=vllm, trainer=megatron, console=looks_on, runners=None,
        broker_is_up=Event(),
    )  # fmt: skip
    found = specs(options, {}, forked_from)
    assert " ".join(spec.name for spec in found) == "coordinator trainer explorer-0 explorer-1 explorer-2 console"
    # The coordinator hears the last words of the others.
    assert [spec.stage for spec in found] == [0, 1, 1, 1, 1, 1]
    assert "explorer.name=explorer-2" in found[-2].command
    assert any(str(word).startswith("explorer.cpu_cores=") for word in found[-2].command) is is_installed_for_cpu()
    # A single engine may compute on all cores.
    (_, _, alone, _) = specs(replace(options, explorers=1), {}, forked_from)
    assert not any(str(word).startswith("explorer.cpu_cores=") for word in alone.command)
    # Its end does not end the demo.
    assert not found[-1].is_needed
    assert [spec.forked_from for spec in found] == [shared, megatron, vllm, vllm, vllm, looks_on]


def test_on_a_shared_cluster_each_run_has_its_own_topics() -> None:
    assert demo_namespace(KAFKA, "20250101-seed0").namespace == "trinity.20250101-seed0"
    of_a_folder = demo_namespace(KAFKA, "my run [ä]").namespace
    assert of_a_folder == "trinity.my-run----"
    assert KafkaSettings(namespace=of_a_folder).namespace == of_a_folder
