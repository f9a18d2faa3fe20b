"""The services' environments are what their settings take."""

import os
from pathlib import Path

import pytest

from trinity_bus.config import KafkaSettings, Settings
from workers.demo.mesh import specs
from workers.demo.settings import DemoOptions, demo_namespace, hint, service_environment

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:9999", namespace="trinity")


@pytest.fixture
def options(tmp_path: Path) -> DemoOptions:
    return DemoOptions(run_dir=tmp_path / "run", seed=7, steps=9, explorers=3, max_staleness=1)


@pytest.mark.parametrize("index", range(5))
def test_each_service_gets_settings_that_are_valid(
    options: DemoOptions, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRINITY_BUS_")]:
        monkeypatch.delenv(name)
    spec = specs(options, KAFKA)[index]
    for name, value in spec.env.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.kafka.bootstrap_servers == KAFKA.bootstrap_servers
    assert settings.coordinator.max_staleness == 1
    assert settings.telemetry.run_dir == options.run_dir
    if spec.name == "trainer":
        assert (settings.trainer.total_steps, settings.trainer.seed) == (9, 7)
    if spec.name.startswith("explorer"):
        assert (settings.explorer.name, settings.explorer.seed) == (spec.name, 7)
        assert settings.explorer.model_path == str(options.model_dir)


def test_names_and_stages(options: DemoOptions) -> None:
    found = specs(options, KAFKA)
    assert [spec.name for spec in found] == ["coordinator", "trainer", "explorer-0", "explorer-1", "explorer-2"]
    # The coordinator hears the last words of the others.
    assert [spec.stage for spec in found] == [0, 1, 1, 1, 1]


def test_on_a_shared_cluster_each_run_has_its_own_topics() -> None:
    assert demo_namespace(KAFKA, "20250101-seed0").namespace == "trinity.20250101-seed0"


def test_the_hint_names_only_what_is_not_the_default(options: DemoOptions) -> None:
    assert hint(service_environment(options, KAFKA)) == "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:9999"
    other = demo_namespace(KAFKA, "x")
    assert hint(service_environment(options, other)).endswith(" TRINITY_BUS_MESH__NAMESPACE=trinity.x")
