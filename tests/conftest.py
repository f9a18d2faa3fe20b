"""Fixtures that all tests share."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from trinity_bus.config import KafkaSettings, Settings

if TYPE_CHECKING:
    from tests.support.mesh.mesh import Mesh

# Tests start some hundred processes; without bytecode each of them, and each session, would compile its imports anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell that runs the tests in the background has them ignore it, and so would every service that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Both are limits by the clock: on a machine that others use too, a record of many fields is drawn slowly.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set by the environment that runs the tests."""
    for name in [name for name in os.environ if name.upper().startswith("TRINITY_BUS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def mesh(kafka: KafkaSettings, tmp_path: Path) -> "Mesh":
    """A namespace of its own, for coordinators in processes of their own."""
    from tests.support.mesh.mesh import Mesh

    return Mesh(kafka, tmp_path)


@pytest.fixture
def namespaced(kafka: KafkaSettings) -> Callable[[], KafkaSettings]:
    """Gives the brokers with a namespace in which there is nothing, another one at each call."""
    from tests.support.mesh.mesh import unused

    return lambda: unused(kafka)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """Real brokers for the whole session: those of the environment, else as ``TEST_BROKER`` says.

    See ``tests.support.mesh.broker_choice``.
    Topics are shared by all tests, so each takes a namespace of its own, see :func:`namespaced`.
    """
    configured = Settings()
    if configured.kafka.bootstrap_servers is not None:
        yield configured.kafka
        return
    # Imported here, because most tests need neither Docker's client nor Kafka.
    from tests.support.mesh.broker_choice import choice

    if choice() == "container":
        from tests.support.mesh.container_broker import container_broker

        with container_broker() as address:
            yield configured.kafka.model_copy(update={"bootstrap_servers": address})
        return
    if choice() == "three":
        from tests.support.mesh.broker_cluster import broker_cluster

        with broker_cluster(tmp_path_factory.mktemp("brokers")) as cluster:
            yield cluster.kafka_settings(configured.kafka)
        return
    from tests.support.mesh.mesh import own_broker
    from trinity_bus.broker import EmbeddedBroker

    with EmbeddedBroker(own_broker(tmp_path_factory.mktemp("broker"), heap_mib=384)) as broker:
        yield broker.kafka_settings(configured.kafka)
