"""Both ends of weight transfers as processes that SIGKILL themselves at a chosen point, once.

The weights, their publisher, its announcements, the receiver and the follower are the real ones; the model is a few
tensors full of the version's number, so that a mixture of two versions is seen at once. There is no engine and no
training. A process dies at a point when a file ``<name>-<phase>`` is in the folder of kills, which it removes first.

===============  =====================================================================================================
phase            the explorer dies ...                           the trainer dies ...
===============  =====================================================================================================
``rendezvous``   when it has read the announcement               when it has read the announcement
``bytes``        when a part of the buckets has arrived          when a part of the buckets is sent
``answer``       when it serves the version and has not said so  when it has sent all, and nobody has answered
===============  =====================================================================================================

With method ``checkpoint`` the trainer sends nothing. It dies when an explorer has read so far: the explorer leaves a
file ``reached-<phase>``, and waits for the death.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed  # takes seconds, as the first link; engines and trainers have it
from safetensors.torch import save_file

from benchmarks._receivers import BareReceiver, follow
from benchmarks._records import step_trained, trainer_beat
from schemas import Member, ModelVersion
from schemas.topics import MODEL_VERSIONS, TRAINER_EVENTS
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import (
    ExplorerSettings,
    KafkaSettings,
    Settings,
    SynchronizerSettings,
    TelemetrySettings,
    TrainerSettings,
)
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.weights.checkpoint import WEIGHTS, CheckpointTransport
from trinity_bus.weights.link import Link
from trinity_bus.weights.pull import frames, server
from trinity_bus.weights.pull.transport import PullTransport
from trinity_bus.weights.vllm.plugin import die_with_parent
from workers.trainer.engines import Publisher, make_publisher
from workers.trainer.version_publisher import ServedVersions

type Phase = Literal["rendezvous", "bytes", "answer"]
PHASES: tuple[Phase, ...] = ("rendezvous", "bytes", "answer")
type FaultMethod = Literal["nccl", "memory", "checkpoint"]
METHODS: tuple[FaultMethod, ...] = ("nccl", "memory", "checkpoint")
TRAINER = "trainer-0"
TENSORS, TENSOR_VALUES, BUCKET_BYTES = 8, 1 << 18, 1 << 20
"""8 MiB of float32 in eight buckets."""
BUCKETS_BEFORE_DEATH = 3
BEAT_S = 0.2
POLL_S = 0.005


@dataclass(frozen=True)
class Post:
    name: str
    kafka: KafkaSettings
    folder: Path
    sync_timeout_s: float
    method: FaultMethod = "nccl"

    def die_if_told(self, phase: Phase) -> None:
        order = kill_order(self.folder, self.name, phase)
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def trainer_may_die(self, phase: Phase) -> None:
        """Let a trainer that sends nothing die now, if it was told to: an explorer has come so far."""
        order = kill_order(self.folder, TRAINER, phase)
        if self.method != "checkpoint" or not order.exists():
            return
        (self.folder / f"reached-{phase}").touch()
        while order.exists():
            time.sleep(POLL_S)


def kill_order(folder: Path, name: str, phase: Phase) -> Path:
    return folder / f"{name}-{phase}"


def after_some[**P](call: Callable[P, None], every: int, then: Callable[[], None]) -> Callable[P, None]:
    """Return a call that does something more amid each version, which takes so many of it."""
    done = [0]

    def counted(*arguments: P.args, **named: P.kwargs) -> None:
        call(*arguments, **named)
        done[0] += 1
        if done[0] % every == BUCKETS_BEFORE_DEATH:
            then()

    return counted


def explorer_dies_amid_buckets(post: Post) -> None:
    def look() -> None:
        post.die_if_told("bytes")
        post.trainer_may_die("bytes")

    for transport in (PullTransport, CheckpointTransport):
        fill = transport.fill

        def counting(self: Any, buffers: Any, arrived: Any, fill: Any = fill) -> None:
            fill(self, buffers, after_some(arrived, TENSORS, look))

        transport.fill = counting  # type: ignore[method-assign]


def trainer_dies_amid_buckets(post: Post) -> None:
    def look() -> None:
        post.die_if_told("bytes")

    Link.wait = after_some(Link.wait, TENSORS, look)  # type: ignore[method-assign]
    frames.send_piece = after_some(frames.send_piece, TENSORS, look)
    answer = server.WeightServer._answer

    def answering(self: Any, *arguments: Any) -> Any:
        asked = answer(self, *arguments)
        post.die_if_told("answer")
        return asked

    server.WeightServer._answer = answering  # type: ignore[method-assign, assignment]


class TornError(Exception):
    pass


class Engine(BareReceiver):
    def __init__(self, post: Post) -> None:
        super().__init__(post.sync_timeout_s)
        self._post = post

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        self._post.die_if_told("rendezvous")
        return await super().sync_weights(announced, member)

    async def take(self, announced: ModelVersion, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        values = {value for _, tensor in tensors for value in tensor.unique().tolist()}
        if values != {float(announced.version)}:
            (self._post.folder / "torn").write_text(f"version {announced.version} has values {values}")
            raise TornError(values)
        self._post.die_if_told("answer")
        await asyncio.to_thread(self._post.trainer_may_die, "answer")


def explorer(post: Post) -> None:
    die_with_parent()
    explorer_dies_amid_buckets(post)
    asyncio.run(_explorer(post))


@asynccontextmanager
async def _bus(post: Post) -> AsyncIterator[Bus]:
    """Connect as a service does. What goes wrong is said on the standard error."""
    logging.basicConfig(format=f"%(asctime)s {post.name} %(message)s", level=logging.INFO)
    async with Bus(post.kafka, client_id=post.name) as bus:
        await bus.ensure_topics()
        yield bus


async def _explorer(post: Post) -> None:
    settings = Settings(kafka=post.kafka, explorer=ExplorerSettings(name=post.name, heartbeat_s=BEAT_S))
    async with _bus(post) as bus:
        await follow(settings, bus, Engine(post))


class Server:
    def __init__(self, post: Post, publisher: Publisher) -> None:
        self._post = post
        self._publisher = publisher

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        if announced.members:
            self._post.die_if_told("rendezvous")
        self._publisher.admit(announced, traceparent)

    def keep(self, version: int) -> None:
        self._publisher.keep(version)


def trainer(post: Post) -> None:
    """Live a trainer's incarnation: publish the version in ``step``, and each that is written there later."""
    die_with_parent()
    trainer_dies_amid_buckets(post)
    # So that its spans are written when it is told to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_dir = TelemetrySettings(run_dir=post.folder)
    telemetry = setup_telemetry("trainer", run_dir, namespace=post.kafka.namespace, instance=post.name)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_trainer(post))
    finally:
        telemetry.shutdown()


def tensors(version: int) -> Iterator[tuple[str, torch.Tensor]]:
    for number in range(TENSORS):
        yield f"layer.{number}", torch.full((TENSOR_VALUES,), float(version))


async def _trainer(post: Post) -> None:
    incarnation = uuid.uuid4().hex
    directory = post.folder / "checkpoints"
    directory.mkdir(exist_ok=True)
    publisher = make_publisher(
        # Explorers come from 127.0.0.1, as if from another machine: they pass versions on.
        TrainerSettings(host="127.0.0.2", bucket_mib=BUCKET_BYTES >> 20),
        SynchronizerSettings(sync_method=post.method, sync_timeout_s=post.sync_timeout_s),
        directory,
        "cpu",
    )
    if post.method == "checkpoint":
        threading.Thread(target=_die_when_reached, args=(post,), daemon=True).start()
    served = ServedVersions(cast("Publisher", Server(post, publisher)), model="policy", incarnation=incarnation)
    step = post.folder / "step"
    published = -1
    async with (
        _bus(post) as bus,
        bus.producer() as producer,
        bus.reader(MODEL_VERSIONS) as announcements,
        asyncio.TaskGroup() as loops,
    ):
        loops.create_task(served.serve(announcements))
        loops.create_task(_beat(producer, publisher, post.name, incarnation))
        while True:
            version = int(step.read_text())
            if version != published:
                published = version
                folder = await asyncio.to_thread(_save, directory, version) if post.method == "checkpoint" else None
                checksum = await asyncio.to_thread(publisher.stage, version, tensors(version))
                served.add(version, checksum)
                told = step_trained(
                    version,
                    incarnation,
                    publisher.address,
                    method=publisher.method,
                    checksum=checksum,
                    checkpoint=None if folder is None else str(folder),
                )
                await (await producer.send(TRAINER_EVENTS, post.name, told))
            await asyncio.sleep(POLL_S)


def _save(directory: Path, version: int) -> Path:
    """Save the checkpoint of a version; that of a former incarnation will do."""
    folder = checkpoint.of_step(directory, version)
    if folder is not None:
        return folder
    save_file(dict(tensors(version)), checkpoint.begin(directory, version) / WEIGHTS)
    progress = TrainingProgress(step=version, version=version)
    return checkpoint.commit(directory, progress, WrittenBy(dtype="float32"), keep=3)


def _die_when_reached(post: Post) -> None:
    """Die when an explorer has come to the phase at which the trainer is to die."""
    while True:
        for phase in PHASES:
            reached = post.folder / f"reached-{phase}"
            if reached.exists():
                reached.unlink()
                post.die_if_told(phase)
        time.sleep(POLL_S)


async def _beat(producer: Producer, publisher: Publisher, name: str, incarnation: str) -> None:
    while True:
        beat = trainer_beat(0, incarnation, publisher.address)
        await producer.send(TRAINER_EVENTS, name, beat)
        await asyncio.sleep(BEAT_S)
