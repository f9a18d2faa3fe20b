"""Who runs the embedded broker starts it again where it dies: the demo, and ``trinity-bus broker run``."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from schemas.topics import TASKS
from tests.support.mesh.mesh import with_topics
from tests.support.mesh.waiting import wait_until
from trinity_bus.config import Settings
from trinity_bus.runtime.supervisor import Restarts, ServiceDiedError
from workers.local import Broker, broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 120.0


async def test_the_demos_broker_comes_back_at_its_address_and_is_given_up_when_it_dies_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr("workers.local.Restarts", lambda: Restarts(1))
    notes: list[str] = []

    async with broker(Settings(), tmp_path / "run", notes.append) as found:
        patient = found.kafka.model_copy(update={"outage_s": LIMIT_S})
        async with with_topics(patient) as bus:
            async with bus.producer() as producer:
                await (await producer.send_raw(TASKS, "k", b"before"))
                java(tmp_path).kill()
                async with asyncio.timeout(LIMIT_S):
                    await (await producer.send_raw(TASKS, "k", b"after"))
            found.check()
            assert [note.partition(",")[0] for note in notes] == ["Kafka was ended by SIGKILL"]
            java(tmp_path).kill()
            # The client may have been served before the start was known to be done.
            with pytest.raises(
                ServiceDiedError, match=r"kafka (was ended by SIGKILL.*once more|cannot be started again)"
            ):
                await given_up(found)


async def given_up(found: Broker) -> None:
    """Looks until the look raises."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found.check()
            await asyncio.sleep(0.05)


def java(folder: Path) -> psutil.Process:
    """The broker whose data lies in a folder."""
    (found,) = [process for process in psutil.Process().children(recursive=True) if is_broker(process, folder)]
    return found


def is_broker(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.name() == "java" and process.cwd().startswith(str(folder))
    except psutil.NoSuchProcess:
        # It has ended since it was listed.
        return False


def test_a_broker_in_the_foreground_is_started_again(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRINITY_BUS_BROKER__DATA_DIR": str(tmp_path / "data"),
        "TRINITY_BUS_BROKER__PORT": "0",
    }
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("trinity-bus")), "broker", "run"], env=environment, stdout=file
        )
    try:
        wait_until(lambda: "serves on" in output.read_text() or process.poll() is not None, "broker", LIMIT_S)
        java(tmp_path).kill()
        wait_until(lambda: output.read_text().count("serves on") == 2, "broker again", LIMIT_S)
        assert "where memory is short; it is started again." in " ".join(output.read_text().split())
        first, second = [line for line in output.read_text().splitlines() if "serves on" in line]
        assert first == second, "at the same address"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
