"""An explorer over a real broker, on a FAKE engine, in this process or its own; a test plays the coordinator."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas import (
    Cancel,
    Dispatch,
    ExperienceGroup,
    ExplorerHeartbeat,
    ModelVersion,
    Task,
)
from schemas.topics import EXPERIENCES, EXPLORER_EVENTS, MODEL_VERSIONS, ROLLOUTS
from tests.support.fakes.announcements import announced
from tests.support.fakes.engine import TOKENIZER, FakeEngine
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import environment, with_topics
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import beside
from trinity_bus.bus import Bus, Producer, Reader, lane_partition
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.process import Process
from trinity_bus.runtime.service import first_error
from workers.explorer.service import ExplorerService

NAME = "explorer-0"
LIMIT_S = 60
MODULES = "tests.support.fakes.rogue_workflows,tests.support.fakes.openai_agent"


class Mesh:
    """The rest of the mesh, played by the test."""

    def __init__(self, settings: Settings, bus: Bus, producer: Producer, events: Reader) -> None:
        self.settings = settings
        self.bus = bus
        self._producer = producer
        self._events = events
        self.seen: list[Any] = []
        self.engine = FakeEngine()
        """Of the explorer that is explored, as are the next two."""
        self.explorer: asyncio.Task[None]
        self.incarnation = ""

    async def event[R](self, kind: type[R], fits: Callable[[R], bool] = lambda _: True) -> R:
        """The next event of a kind that fits."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for i, record in enumerate(self.seen):
                    if isinstance(record, kind) and fits(record):
                        return self.seen.pop(i)
                self.seen += [received.record for received in await self._events.batch(1)]

    async def joined(self, former: str = "") -> str:
        """The incarnation that joins, after the former one."""
        beat = await self.event(ExplorerHeartbeat, lambda beat: beat.state == "ready" and beat.incarnation != former)
        assert beat.explorer == NAME
        assert "math" in beat.workflows
        return beat.incarnation

    async def send(self, record: Dispatch | Cancel) -> None:
        await (await self._producer.send(ROLLOUTS, record.explorer, record, partition=lane_partition(record.explorer)))

    async def announce(self, version: ModelVersion) -> None:
        await (await self._producer.send(MODEL_VERSIONS, version.model, version))

    async def send_raw(self, value: bytes) -> None:
        await (await self._producer.send_raw(ROLLOUTS, NAME, value, partition=lane_partition(NAME)))

    async def experiences(self) -> list[ExperienceGroup]:
        """All that were ever published."""
        async with self.bus.reader(EXPERIENCES, start="beginning") as reader:
            return [record_of(received) async for received in reader.replay()]


@pytest.fixture
def settings(kafka: KafkaSettings) -> Settings:
    namespace = f"explorer-{uuid.uuid4().hex[:8]}"
    return Settings(
        kafka=kafka.model_copy(update={"namespace": namespace}),
        explorer=ExplorerSettings(name=NAME, slots=4, heartbeat_s=0.2, drain_s=0.2),
    )


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """One for all tests: every explorer has runners of its own."""
    settings = Settings(explorer=ExplorerSettings(workflow_modules=MODULES))
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        yield fork_server


@asynccontextmanager
async def mesh_of(settings: Settings) -> AsyncIterator[Mesh]:
    async with (
        with_topics(settings.kafka) as bus,
        bus.producer() as producer,
        bus.reader(EXPLORER_EVENTS, start="end") as events,
    ):
        yield Mesh(settings, bus, producer, events)


@asynccontextmanager
async def exploring(
    settings: Settings, engine: FakeEngine, fork_server: ForkServer
) -> AsyncIterator[asyncio.Task[None]]:
    async with (
        Bus(settings.kafka, client_id=NAME) as bus,
        beside(ExplorerService(settings, bus, engine, fork_server).run()) as task,
    ):
        yield task


@asynccontextmanager
async def explored(settings: Settings, fork_server: ForkServer) -> AsyncIterator[Mesh]:
    """A mesh with an explorer that has joined, for a test's body; looks at how the explorer ended."""
    async with mesh_of(settings) as mesh:
        async with exploring(settings, mesh.engine, fork_server) as explorer:
            mesh.explorer, mesh.incarnation = explorer, await mesh.joined()
            yield mesh
        if not explorer.cancelled() and (error := explorer.exception()) is not None:
            assert isinstance(first_error(error), EngineDeadError)


@pytest.fixture
async def alone(settings: Settings, fork_server: ForkServer) -> AsyncIterator[Mesh]:
    async with explored(settings, fork_server) as mesh:
        yield mesh


@asynccontextmanager
async def process_of(settings: Settings, kind: str, **variables: str) -> AsyncIterator[Process]:
    """An explorer in a process of its own, which is killed at the end of the block."""
    own = {"explorer__name": NAME, "explorer__heartbeat_s": 0.2, "explorer__workflow_modules": MODULES}
    env = environment(settings.kafka, **own) | variables
    with tempfile.NamedTemporaryFile(prefix="explorer-", suffix=".log") as file:
        process = forked("tests.support.fakes.explorer", kind, name=NAME, env=env, output=Path(file.name))
        with process, log_shown_on_failure(process, Path(file.name)):
            yield process


def dispatch(incarnation: str, task_id: str = "t", **changes: Any) -> Dispatch:
    fields: dict[str, Any] = {
        "explorer": NAME,
        "incarnation": incarnation,
        "task": Task(task_id=task_id, workflow="math", prompt="6*7=", answer="42"),
        "attempt": 1,
        "batch_id": "1",
        "batch_type": "train",
        "repeat_times": 2,
        "timeout_s": 20.0,
    }
    return Dispatch(**(fields | changes))


def cancel(order: Dispatch) -> Cancel:
    return Cancel(
        explorer=NAME,
        incarnation=order.incarnation,
        task_id=order.task.task_id,
        attempt=order.attempt,
        reason="no longer wanted",
    )


def announcement(version: int, incarnation: str, *, epoch: int = 1) -> ModelVersion:
    return announced(version, NAME, incarnation=incarnation, epoch=epoch, checksum=f"{version:064d}")
