"""A namespace of its own on a real broker, and real coordinator processes in it."""

import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas import Task
from schemas.topics import TASKS
from tests.support.mesh.processes import log_shown_on_failure
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Child, tail


class Mesh:
    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = kafka.model_copy(update={"namespace": f"test-{uuid.uuid4().hex[:12]}"})
        self.folder = folder
        self.started = 0

    @contextlib.contextmanager
    def coordinator(
        self,
        synchronizer: Mapping[str, object] | None = None,
        *,
        module: str = "workers.cli.app",
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Iterator[Child]:
        """A coordinator process; of another module, and with more variables, where these are given."""
        self.started += 1
        log = self.folder / f"coordinator-{self.started}.log"
        values = {"batch_size": 4, "tick_s": 0.05, "explorer_timeout_s": 5, **settings}
        env = {
            **os.environ,
            "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": str(self.kafka.bootstrap_servers),
            "TRINITY_BUS_MESH__NAMESPACE": self.kafka.namespace,
            "TRINITY_BUS_TELEMETRY__RUN_DIR": str(self.folder),
            **{f"TRINITY_BUS_COORDINATOR__{name.upper()}": str(value) for name, value in values.items()},
            **{f"TRINITY_BUS_SYNCHRONIZER__{name.upper()}": str(v) for name, v in (synchronizer or {}).items()},
            **(environment or {}),
        }
        command = [sys.executable, "-W", "error", "-m", module, "run", "coordinator"]
        with Child(command, env=env, output=log) as child, log_shown_on_failure(child, log):
            yield child

    def log(self, number: int = 1) -> str:
        return tail(self.folder / f"coordinator-{number}.log", 200)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Bus, Producer]]:
        async with Bus(self.kafka, client_id="test") as bus:
            await bus.ensure_topics()
            async with bus.producer() as producer:
                yield bus, producer


async def send_tasks(producer: Producer, count: int, prefix: str = "task", **fields: Any) -> None:
    for number in range(count):
        task = Task(task_id=f"{prefix}-{number}", workflow="math", prompt="1 + 1", answer="2", **fields)
        await producer.send(TASKS, task.task_id, task)
    await producer.flush()
