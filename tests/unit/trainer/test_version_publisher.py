"""What the trainer tells of steps and versions, in which order, whatever takes long; whom it lets in to a version, and
whether what members say of it is right. Engine and log are fakes.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from schemas import ModelVersion, StepTrained, VersionRefused, WeightsSynced
from schemas.topics import MODEL_VERSIONS
from tests.support.fakes.announcements import announced
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.fakes.received import durable
from tests.support.fakes.trainer_context import context_of
from tests.support.mesh.waiting import beside, until
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.errors import CheckpointError
from trinity_bus.weights.staging import Staging
from workers.trainer.engines import EngineThread, PublishedTensors
from workers.trainer.training_loop import Trained
from workers.trainer.version_publisher import ServedVersions, VersionPublisher


class Engine:
    """Weights that say which step they are of; a checkpoint is real, and done at once or when it is told to."""

    dtype = torch.bfloat16
    source: Path | None = None

    def __init__(self, *, keep: int = 9) -> None:
        self.progress = TrainingProgress()
        self.keep = keep
        self.is_done_at_once = True
        self.written: Future[Path] = Future()
        self.saved = threading.Event()

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        # In another order than that of their names.
        for name in ("b", "a"):
            yield name, torch.full((3,), float(self.progress.step))

    def save_checkpoint(self, directory: Path, progress: TrainingProgress, *, as_hf: bool) -> "Future[Path]":
        del as_hf
        partial = checkpoint.begin(directory, progress.step)
        save_file(dict(self.hf_tensors()), partial / "model.safetensors")
        folder = checkpoint.commit(directory, progress, WrittenBy(dtype="float32"), keep=self.keep)
        self.written = Future()
        if self.is_done_at_once:
            self.written.set_result(folder)
        self.saved.set()
        return self.written


class Publisher:
    """Stages when it may, and serves nobody."""

    method = "gloo"
    address = ("127.0.0.1", 1)

    def __init__(self, events: list[str]) -> None:
        self.staging = Staging(bucket_bytes=1 << 20, retain=2)
        self.keep, self.durable = self.staging.keep, self.staging.open
        self.may_stage = threading.Event()
        self.may_stage.set()
        self._events = events

    def stage(self, version: int, named_tensors: Iterator[tuple[str, torch.Tensor]], folder: Path | None) -> str:
        assert self.may_stage.wait(10)
        self._events.append(f"staged {version}")
        return self.staging.stage(version, named_tensors, folder).checksum


class Trainer:
    def __init__(self, directory: Path, thread: EngineThread, tasks: asyncio.TaskGroup | None = None) -> None:
        self.directory, self.engine = directory, Engine(keep=3)
        self.sent: list[Any] = []
        self.events: list[str] = []
        self.publisher = Publisher(self.events)
        around = context_of(
            TrainerSettings(publish="durable", checkpoint_interval=4),
            directory=directory,
            thread=thread,
            engine=self.engine,
            producer=self,
            steps=SimpleNamespace(trainer="trainer-0/grpo"),
        )
        tensors = PublishedTensors(cast("Any", self.engine), Settings())
        parts: dict[str, Any] = {"rollback": None, "publisher": self.publisher, "tasks": tasks}
        self.versions = VersionPublisher(around, tensors=tensors, **parts)

    async def send(self, _topic: object, _key: str, record: Any) -> "asyncio.Future[None]":
        self.sent.append(record)
        if isinstance(record, StepTrained):
            self.events.append(f"told {record.step}{' of its version' if record.publish else ''}")
        return durable()

    async def step(self) -> None:
        step = self.engine.progress.step + 1
        self.engine.progress = TrainingProgress(step=step, version=step)
        self.engine.save_checkpoint(self.directory, self.engine.progress, as_hf=False)
        await self.publish("batch", {"loss": 0.5}, 1.0)

    async def publish(self, *of_step: Any) -> None:
        await self.versions.stage(self.engine.progress.version)
        await self.versions.announce(Trained(self.engine.progress, *of_step), publish=True)

    async def trained(self, step: int, *, publish: bool = False) -> None:
        await self.versions.trained(Trained(TrainingProgress(step=step, version=step)), publish=publish, last=False)


@pytest.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[Trainer]:
    async with EngineThread() as thread:
        yield Trainer(tmp_path, thread)


async def test_a_version_comes_back_with_the_bytes_that_it_had(trainer: Trainer) -> None:
    for _ in range(3):
        await trainer.step()
    await trainer.versions.publish_again(1)
    first, *_, again = trainer.sent
    assert isinstance(again, StepTrained)
    assert (again.again, again.publish, again.version, again.step) == (True, True, 1, 1)
    assert {(one.trainer, one.writer) for one in trainer.sent} == {("trainer-0", "trainer-0/grpo")}
    assert {(one.dtype, one.source) for one in trainer.sent} == {("bfloat16", None)}
    assert (again.checksum, again.checkpoint) == (first.checksum, first.checkpoint)
    assert 1 in trainer.publisher.staging._staged
    assert trainer.versions.published_version == 3


async def test_the_newest_version_is_at_hand(trainer: Trainer) -> None:
    await trainer.publish()
    await trainer.versions.publish_again(0)
    first, again = trainer.sent
    assert (again.version, again.again, again.checksum) == (0, True, first.checksum)


async def test_a_version_without_a_checkpoint_is_refused_with_those_that_have_one(trainer: Trainer) -> None:
    for _ in range(5):
        await trainer.step()
    await trainer.versions.publish_again(2)
    refused = trainer.sent[-1]
    assert isinstance(refused, VersionRefused)
    assert (refused.version, refused.available) == (2, [3, 4, 5])
    assert "keep_checkpoints" in refused.reason


async def test_the_checkpoint_of_a_version_that_was_brought_back_is_kept(trainer: Trainer) -> None:
    for _ in range(3):
        await trainer.step()
    await trainer.versions.publish_again(2)
    for _ in range(5):
        await trainer.step()
    assert checkpoint.steps(trainer.directory) == [2, 6, 7, 8]
    assert 2 in trainer.publisher.staging._staged
    await trainer.versions.publish_again(7)
    await trainer.step()
    assert checkpoint.steps(trainer.directory) == [7, 8, 9]


async def turns() -> None:
    """Give every task that can go on the chance to do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_checkpoint_that_is_written_faster_than_its_version_is_staged_waits_with_the_news(
    tmp_path: Path,
) -> None:
    async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
        trainer = Trainer(tmp_path, thread, tasks)
        trainer.publisher.may_stage.clear()
        under_way = tasks.create_task(trainer.trained(1, publish=True))
        assert await asyncio.to_thread(trainer.engine.saved.wait, 10)
        await turns()
        trainer.publisher.may_stage.set()
        await under_way
        await trainer.versions.settled()
    assert trainer.events == ["staged 1", "told 1 of its version"]


async def test_no_step_is_told_of_before_its_note_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting, may_note = threading.Event(), threading.Event()
    async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
        trainer = Trainer(tmp_path, thread, tasks)

        def slow_note(_directory: Path, _progress: TrainingProgress) -> None:
            noting.set()
            assert may_note.wait(10)
            trainer.events.append("noted 5")

        monkeypatch.setattr(checkpoint, "note_told", slow_note)
        trainer.engine.is_done_at_once = False
        await trainer.trained(4)
        under_way = tasks.create_task(trainer.trained(5))
        assert await asyncio.to_thread(noting.wait, 10)
        trainer.engine.written.set_result(tmp_path)
        await turns()
        may_note.set()
        await under_way
        await trainer.versions.settled()
    assert trainer.events == ["noted 5", "told 4", "told 5"]
    assert trainer.versions.published_version == -1


async def test_a_checkpoint_that_cannot_be_written_ends_what_trains(tmp_path: Path) -> None:
    events: list[list[str]] = []

    async def train() -> None:
        async with EngineThread() as thread, asyncio.TaskGroup() as tasks:
            trainer = Trainer(tmp_path, thread, tasks)
            events.append(trainer.events)
            trainer.engine.is_done_at_once = False
            await trainer.trained(4)
            trainer.engine.written.set_exception(CheckpointError("No space left on device"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as ended:
        await train()
    assert ended.group_contains(CheckpointError, match="No space left")
    assert events == [[]]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def announcement(epoch: int, *explorers: str, version: int = 1, incarnation: str = "life") -> ModelVersion:
    return announced(version, *explorers, incarnation="a", epoch=epoch, trainer_incarnation=incarnation, checksum="aa")


class FakeServer:
    """Notes whom it is told to let in, and what to keep."""

    def __init__(self) -> None:
        self.admitted: list[tuple[int, int, str | None]] = []
        self.kept: list[int] = []

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        self.admitted.append((announced.version, announced.epoch, traceparent))

    def keep(self, version: int) -> None:
        self.kept.append(version)


def served(server: FakeServer | None = None) -> ServedVersions:
    made = ServedVersions(cast("Any", server or FakeServer()), model="policy", incarnation="life")
    made.add(1, "aa")
    return made


async def test_members_of_this_lifes_announcements_are_let_in_and_the_last_version_is_kept() -> None:
    server, bus = FakeServer(), FakeBus(FakeLog())
    async with bus.producer() as producer, bus.reader(MODEL_VERSIONS, start="beginning") as reader:
        for record in (
            announcement(1, "good"),
            announcement(9, "good", incarnation="former"),
            announcement(2, "lame"),
            announcement(3, version=2),
        ):
            await producer.send(MODEL_VERSIONS, "policy", record, headers=[("traceparent", TRACE.encode())])
            await producer.send_raw(MODEL_VERSIONS, "policy", b"not msgpack")
        async with beside(served(server).serve(reader)):  # type: ignore[arg-type]  # has what is used
            await until(lambda: len(server.kept) == 3)
    assert server.admitted == [(1, 1, TRACE), (1, 2, TRACE), (2, 3, TRACE)]
    assert server.kept == [1, 1, 2]


def synced(**changes: Any) -> WeightsSynced:
    of: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "a", "model": "policy"}
    return WeightsSynced(**{**of, "version": 1, "epoch": 1, "ok": True, "checksum": "aa", **changes})


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param(synced(), True, id="right"),
        pytest.param(synced(ok=False, checksum="", error="LinkError"), True, id="failed, and says so"),
        pytest.param(synced(version=7, checksum="bb"), True, id="of a version that this incarnation never had"),
        pytest.param(synced(model="other", checksum="bb"), True, id="of another model"),
        pytest.param(synced(checksum="bb"), False, id="other bytes"),
        pytest.param(synced(checksum=""), False, id="none"),
    ],
)
def test_wrong_bytes_are_reported_and_counted(
    answer: WeightsSynced, *, is_right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = served()
    assert made.compare(answer) is is_right
    assert made.mismatches == int(not is_right)
    assert ("explorer-0 received version 1" in caplog.text) is not is_right


def test_old_checksums_are_forgotten() -> None:
    made = served()
    for version in range(2, 40):
        made.add(version, "aa")
    assert made.compare(synced(checksum="bb"))
    assert not made.compare(synced(version=39, checksum="bb"))
