"""A trainer whose ranks torch's launchers start, one on each of two machines, trains what its own children train.

The machines are processes with folders of their own; what tells them from one is that each launcher has one rank, that
ranks meet at an address that is not loopback, and that each rank is sent what it trains on over a connection.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas import StepTrained
from schemas.topics import TRAINER_EVENTS
from tests.integration.training.trainers import (
    DEADLINE_S,
    Trainer,
    batches_of,
    deterministic,
    produce,
    step_is,
    train_to_the_end,
    trained,
    until,
)
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.ports import quiet_ports
from tests.support.sampled import at_night
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.guard import descendants
from trinity_bus.runtime.process import Child

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def address() -> str:
    """One of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


class Machines:
    """Two launchers, each with one rank of a trainer."""

    def __init__(self, trainer: Trainer, address: str) -> None:
        self._trainer = trainer
        self._address = address
        self.logs = [trainer.folder / f"machine-{number}.log" for number in range(2)]

    @contextlib.contextmanager
    def running(self) -> Iterator[list[Child]]:
        """Both."""
        (port,) = quiet_ports(1)
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self._launcher(number, port)) for number in range(2)]

    def _launcher(self, number: int, port: int) -> Child:
        folder = self._trainer.folder / f"machine-{number}"
        folder.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"),
            *(f"--node-rank={number}", f"--master-addr={self._address}", f"--master-port={port}"),
            *("-m", "workers.cli.app", "run", "trainer"),
        ]
        environment = {
            **self._trainer.environment,
            "TRINITY_BUS_TRAINER__RANKS_HOST": self._address,
            "TRINITY_BUS_TRAINER__RANKS_KEY": "a key of some characters",
        }
        return Child(command, env=environment, cwd=folder, output=self.logs[number])


def rank_of(launcher: Child) -> int:
    """Process id of the rank that a launcher has started."""
    (rank,) = (
        pid for pid in descendants(launcher.pid) if b"workers.cli.app" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return rank


async def ended(launcher: Child) -> int | None:
    return await asyncio.to_thread(launcher.wait, DEADLINE_S)


@pytest.mark.parametrize("again", ["as children", at_night("launched")])
async def test_ranks_of_two_launchers_train_what_two_children_train_and_outlive_the_death_of_one(
    namespaced: Callable[[], KafkaSettings], address: str, tmp_path: Path, again: str
) -> None:
    model, batches = write_model(tmp_path / "model"), batches_of(3)

    async def by_children() -> list[StepTrained]:
        kafka = namespaced()
        trainer = Trainer(kafka, tmp_path / "children", model, total_steps=3, data_parallel=2)
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches)
            return await train_to_the_end(bus, trainer, 3)

    async def by_launchers() -> list[StepTrained]:
        kafka = namespaced()
        trainer = Trainer(kafka, tmp_path / "launched", model, total_steps=3, data_parallel=2)
        machines = Machines(trainer, address)
        async with Bus(kafka, client_id="test") as bus:
            await produce(bus, batches[:2])
            async with bus.reader(TRAINER_EVENTS, start="beginning") as events:
                with machines.running() as launchers:
                    said = trained(await until(events, step_is(2), launchers[0]))
                    os.kill(rank_of(launchers[1]), signal.SIGKILL)
                    assert [await ended(one) for one in launchers] == [1, 1]
                assert f"rank 1 of 2 (at {address}) is gone: " in machines.logs[0].read_text()
                await produce(bus, batches[2:], first=3)
                if again == "as children":
                    return await train_to_the_end(bus, trainer, 3)
                with machines.running() as launchers:
                    said += trained(await until(events, step_is(3), launchers[0]))
                    os.kill(rank_of(launchers[0]), signal.SIGTERM)
                    assert [await ended(one) for one in launchers] == [0, 0], machines.logs[0].read_text()
        return said

    alone, together = await by_children(), await by_launchers()
    assert [step.step for step in together] == [0, 1, 2, 2, 3], "the second incarnation goes on from the first one's"
    once = [*together[:3], together[4]]
    assert [step.checksum for step in once] == [step.checksum for step in alone]
    assert [deterministic(step) for step in once] == [deterministic(step) for step in alone]
