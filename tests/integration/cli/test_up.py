"""A mesh of one's own, from one command to the end of its training, whatever befalls it on the way.

The engine and the trainer are FAKE (``tests.support.mesh.stand_in``); all else, and every process, is real. It runs in
a process of its own, so that it can be stopped and killed with all that it has started.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from schemas import BatchLifecycleState
from tests.support.mesh.log import MeshLog
from tests.support.mesh.mesh import own_broker
from tests.support.mesh.processes import Program, command_of, name_of
from tests.support.mesh.stand_in import command
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runtime.process import tail

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 240.0
TASKS = 64
TASKS_IN_BATCH = 4
FROZEN_S = float(os.environ.get("FROZEN_S", "30"))
"""Longer than each limit below; five minutes with the limits as they are by default, where the environment says so."""
LIMITS: Mapping[str, float] = {
    "TRINITY_BUS_KAFKA__OUTAGE_S": 20,
    "TRINITY_BUS_KAFKA__REQUEST_TIMEOUT_S": 5,
    "TRINITY_BUS_COORDINATOR__EXPLORER_TIMEOUT_S": 5,
    "TRINITY_BUS_COORDINATOR__TASK_TIMEOUT_S": 20,
    "TRINITY_BUS_SYNCHRONIZER__SYNC_TIMEOUT_S": 5,
}


class Up(Program):
    def __init__(self, folder: Path, limits: Mapping[str, float], data: str) -> None:
        self.run_dir = folder / "run"
        (self.run_dir / "logs").mkdir(parents=True)
        lines = [
            {"task_id": f"task-{i}", "workflow": "sequence", "prompt": f"{i} {i + 1}", "answer": "red green blue"}
            for i in range(TASKS)
        ]
        (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "tasks.toml").write_text(f'[[train]]\npath = "{data}"\n')
        env = {
            **os.environ,
            "TRINITY_BUS_BROKER__HEAP_MIB": "384",
            "TRINITY_BUS_BROKER__START_TIMEOUT_S": "240",
            "TRINITY_BUS_TASKSET__PATH": str(folder / "tasks.toml"),
            "TRINITY_BUS_TASKSET__EPOCHS": "1",
            "TRINITY_BUS_COORDINATOR__BATCH_SIZE": str(TASKS_IN_BATCH),
            "TRINITY_BUS_COORDINATOR__GROUP_SIZE": "2",
            "TRINITY_BUS_COORDINATOR__MAX_STALENESS": "2",
            "TRINITY_BUS_EXPLORER__SLOTS": "2",
            "FAKE_ENGINE_DELAY_S": "0.5",
            **{name: str(value) for name, value in limits.items()},
        }
        super().__init__(command("up", str(self.run_dir), "2"), self.run_dir / "logs" / "up.log", env)

    def trained(self) -> int:
        path = self.run_dir / "checkpoint.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else 0

    def until_trained(self, step: int) -> None:
        self.until(lambda: self.trained() >= step, f"step {step}", LIMIT_S, 0.005)

    async def check(self) -> None:
        """Nothing is lost, nothing counts twice."""
        own = own_broker(self.run_dir / "broker", start_timeout_s=LIMIT_S)
        async with EmbeddedBroker(own) as broker, Bus(broker.kafka_settings(KafkaSettings()), client_id="test") as bus:
            log = await MeshLog.read(bus)
        log.check(max_staleness=2, max_inflight_batches=Settings().coordinator.max_inflight_batches)
        assert len(log.sent) == TASKS
        assert [batch.state for batch in log.finalized] == [BatchLifecycleState.FINALIZED] * (TASKS // TASKS_IN_BATCH)
        assert self.trained() == TASKS // TASKS_IN_BATCH


@contextmanager
def begun(folder: Path, limits: Mapping[str, float] | None = None, data: str = "train.jsonl") -> Iterator[Up]:
    up = Up(folder, limits or {}, data)
    try:
        yield up
    finally:
        up.process.kill()
        up.ended(LIMIT_S)


@pytest.mark.nightly
async def test_a_machine_that_stands_still_comes_back_by_itself(tmp_path: Path) -> None:
    with begun(tmp_path, LIMITS if FROZEN_S < 300 else None) as up:
        up.until_trained(3)
        family = up.family()
        assert len([one for one in family if name_of(one) == "java"]) == 1
        for one in family:
            one.suspend()
        # What is meant is the time itself.
        await asyncio.sleep(FROZEN_S)
        before, began = up.trained(), time.monotonic()
        for one in family:
            one.resume()
        up.until_trained(before + 1)
        print(f"stood still for {FROZEN_S:g} s at step {before}; the next step {time.monotonic() - began:.1f} s after")
        assert up.ended(LIMIT_S) == 0, up.said()
        assert "again" not in up.said(), up.said()
        await up.check()


async def test_what_is_killed_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with begun(tmp_path) as up:
        for step, what in ((2, "explorer-1"), (4, "coordinator"), (6, "trainer"), (8, "java")):
            up.until_trained(step)
            killed = next(one for one in up.family() if _is(one, what))
            os.kill(killed.pid, signal.SIGKILL)
        assert up.ended(LIMIT_S) == 0, up.said()
        said = " ".join(up.said().split())
        for name in ("explorer-1", "coordinator", "trainer", "Kafka"):
            assert f"{name} was ended by SIGKILL" in said
        await up.check()


def test_a_setting_that_is_wrong_is_said_once_and_ends_all(tmp_path: Path) -> None:
    with begun(tmp_path, data="missing.jsonl") as up:
        assert up.ended(LIMIT_S) != 0
        said = up.said()
        assert "taskset ended with status 78: a setting is wrong" in " ".join(said.split())
        assert "missing.jsonl" in tail(up.run_dir / "logs" / "taskset.log")
        assert "is started again" not in said


def _is(process: psutil.Process, what: str) -> bool:
    """Whether a process is a service, and not its guard, or Kafka's Java."""
    if what == "java":
        return name_of(process) == "java"
    line = command_of(process).split()
    named = f"explorer.name={what}" in line if what.startswith("explorer") else line[-1:] == [what]
    return named and not any(part.endswith("guard.py") for part in line) and "tests.support.mesh.stand_in" in line
