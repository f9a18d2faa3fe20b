"""Where the log is that a benchmark measures over: the configured cluster, else an embedded broker."""

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings, env_name


@dataclass(frozen=True, slots=True)
class Cluster:
    kafka: KafkaSettings
    broker: EmbeddedBroker | None
    """Ours, if it is."""
    folder: Path

    def unused(self) -> KafkaSettings:
        """Return the same cluster with a namespace in which there is nothing."""
        return self.kafka.model_copy(update={"namespace": f"bench-{uuid.uuid4().hex[:8]}"})


def environment(kafka: KafkaSettings, settings: Mapping[str, object]) -> dict[str, str]:
    told = {"kafka.bootstrap_servers": kafka.bootstrap_servers, "mesh.namespace": kafka.namespace, **settings}
    return {**os.environ, **{env_name(name): str(value) for name, value in told.items()}}


def service(name: str) -> list[str | Path]:
    return [sys.executable, "-m", "workers.cli.app", "run", name]


async def make_topics(kafka: KafkaSettings) -> None:
    async with Bus(kafka, client_id="benchmark") as bus:
        await bus.ensure_topics()


@contextlib.contextmanager
def cluster_to_measure() -> Iterator[Cluster]:
    """Provide the configured cluster, else an embedded broker; and a folder. What is ours is gone afterwards."""
    configured = Settings()
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder, contextlib.ExitStack() as stack:
        broker = None
        kafka = configured.kafka
        if kafka.bootstrap_servers is None:
            # Without a port of its own, so that it comes back at the same one when it is killed.
            settings = configured.broker.model_copy(update={"port": None, "data_dir": Path(folder) / "broker"})
            broker = stack.enter_context(EmbeddedBroker(settings))
            kafka = broker.kafka_settings(kafka)
        yield Cluster(kafka, broker, Path(folder))
