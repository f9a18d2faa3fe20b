"""Fixtures that all tests share."""

from collections.abc import Iterator

import pytest

from trinity_bus.config import BrokerSettings, KafkaSettings, Settings


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """A real broker for the whole session: the one that the environment names, else an embedded one.

    Topics are shared by all tests, so each takes a namespace of its own:
    ``kafka.model_copy(update={"namespace": unique})``.
    """
    configured = Settings()
    if configured.kafka.bootstrap_servers is not None:
        yield configured.kafka
        return
    from trinity_bus.broker import EmbeddedBroker

    settings = BrokerSettings(
        port=0, data_dir=tmp_path_factory.mktemp("broker"), cache_dir=configured.broker.cache_dir, heap_mib=384
    )
    with EmbeddedBroker(settings) as broker:
        yield broker.kafka_settings(configured.kafka)
