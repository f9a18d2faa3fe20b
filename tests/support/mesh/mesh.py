"""A namespace of its own on a real broker, and real coordinator processes in it."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas import Task
from schemas.topic import Topic
from schemas.topics import TASKS, TOPICS
from tests.support.mesh.forks import finished, forked
from tests.support.mesh.processes import log_shown_on_failure
from trinity_bus.bus import Bus, Producer
from trinity_bus.bus.client.connection import administrator
from trinity_bus.config import BrokerSettings, KafkaSettings, Settings
from trinity_bus.runtime.process import Child, Process, tail

PROGRAM = "workers.cli.app"


def unused(kafka: KafkaSettings) -> KafkaSettings:
    """The same brokers, with a namespace in which there is nothing."""
    return kafka.model_copy(update={"namespace": f"test-{uuid.uuid4().hex[:12]}"})


def own_broker(folder: Path, **more: object) -> BrokerSettings:
    """Settings of an embedded broker that a test has for itself, on any port."""
    given = {"port": 0, "data_dir": folder, "cache_dir": Settings().broker.cache_dir, "heap_mib": 256}
    return BrokerSettings.model_validate(given | more)


def environment(kafka: KafkaSettings, **settings: object) -> dict[str, str]:
    """The variables of a process that works in a namespace; settings are named ``section__name``."""
    told = {"kafka__bootstrap_servers": kafka.bootstrap_servers, "mesh__namespace": kafka.namespace, **settings}
    return {**os.environ, **{f"TRINITY_BUS_{name.upper()}": str(value) for name, value in told.items()}}


def trinity_bus(kafka: KafkaSettings, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """A command, as a user runs it in a namespace."""
    return finished(PROGRAM, *arguments, env=environment(kafka, **settings) | {"COLUMNS": "160"})


@contextlib.asynccontextmanager
async def with_topics(kafka: KafkaSettings, topics: Sequence[Topic] = TOPICS) -> AsyncIterator[Bus]:
    """A client of a namespace in which there are these topics."""
    async with Bus(kafka, client_id="test") as bus:
        await bus.ensure_topics(topics)
        yield bus


async def make_topics(kafka: KafkaSettings, topics: Sequence[Topic] = TOPICS) -> None:
    """Have these topics in a namespace."""
    async with with_topics(kafka, topics):
        pass


class Mesh:
    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = unused(kafka)
        self.folder = folder
        self.started = 0

    @contextlib.contextmanager
    def coordinator(
        self,
        synchronizer: Mapping[str, object] | None = None,
        *,
        module: str = PROGRAM,
        variables: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Iterator[Process]:
        """A coordinator process; of another module, and with more variables, where these are given."""
        self.started += 1
        log = self.folder / f"coordinator-{self.started}.log"
        values = {"batch_size": 4, "tick_s": 0.05, "explorer_timeout_s": 5, **settings}
        given = {f"coordinator__{name}": value for name, value in values.items()}
        given |= {f"synchronizer__{name}": value for name, value in (synchronizer or {}).items()}
        env = {**environment(self.kafka, telemetry__run_dir=self.folder, **given), **(variables or {})}
        command = [module, "run", "coordinator"]
        if module == PROGRAM:
            process: Process = forked(*command, name=log.stem, env=env | {"PYTHONWARNINGS": "error"}, output=log)
        else:
            # What it changes must be changed before anything is imported.
            process = Child([sys.executable, "-W", "error", "-m", *command], env=env, output=log)
        with process, log_shown_on_failure(process, log):
            yield process

    def log(self, number: int = 1) -> str:
        return tail(self.folder / f"coordinator-{number}.log", 200)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Bus, Producer]]:
        async with with_topics(self.kafka) as bus, bus.producer() as producer:
            yield bus, producer


async def send_tasks(producer: Producer, count: int, prefix: str = "task", **fields: Any) -> None:
    for number in range(count):
        task = Task(task_id=f"{prefix}-{number}", workflow="math", prompt="1 + 1", answer="2", **fields)
        await producer.send(TASKS, task.task_id, task)
    await producer.flush()


async def described(settings: KafkaSettings, name: str) -> tuple[list[int], dict[str, str]]:
    """Replicas of each partition, and the topic's settings."""
    async with administrator(settings, "test") as admin:
        (topic,) = await admin.describe_topics([name])
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        configs = {entry[0]: entry[1] for entry in response.resources[0][4]}
        return [len(partition["replicas"]) for partition in topic["partitions"]], configs
