"""The embedded broker, for real: it serves, it recovers, and it never outlives its owner."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from schemas.topics import TASKS
from tests.support.mesh.forks import finished
from tests.support.mesh.mesh import PROGRAM, own_broker, with_topics
from tests.support.mesh.processes import assert_all_gone, family_of, name_of
from tests.support.sampled import at_night
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.broker.layout import Folder
from trinity_bus.broker.node import claim
from trinity_bus.bus import Bus
from trinity_bus.config import BrokerSettings

pytestmark = pytest.mark.integration

OWNER = """
import sys, time
from pathlib import Path
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import BrokerSettings
broker = EmbeddedBroker(BrokerSettings(port=0, data_dir=Path(sys.argv[1])))
print("starting", flush=True)
with broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    """A broker of its own."""
    return own_broker(tmp_path / "data")


async def produce(broker: EmbeddedBroker, values: list[bytes]) -> None:
    async with with_topics(broker.kafka_settings(), [TASKS]) as bus, bus.producer() as producer:
        for value in values:
            await (await producer.send_raw(TASKS, "k", value))


async def consume(broker: EmbeddedBroker) -> list[bytes]:
    async with (
        Bus(broker.kafka_settings(), client_id="test") as bus,
        bus.reader(TASKS, start="beginning", expect=()) as reader,
    ):
        return [received.raw async for received in reader.replay()]


async def test_whatever_was_acknowledged_survives_a_kill(settings: BrokerSettings) -> None:
    values = [str(number).encode() for number in range(200)]
    with EmbeddedBroker(settings) as broker:
        servers = broker.bootstrap_servers
        await produce(broker, values)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.wait(60) == -signal.SIGKILL
        broker.start()
        # Clients that wait for it find it where it was.
        assert broker.bootstrap_servers == servers
        assert await consume(broker) == values
    assert broker.poll() is not None
    # And an orderly end keeps it too.
    with EmbeddedBroker(settings) as broker:
        assert await consume(broker) == values


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("while it starts", signal.SIGINT),
        ("while it serves", signal.SIGKILL),
        at_night("while it starts", signal.SIGKILL),
        at_night("while it serves", signal.SIGINT),
    ],
)
def test_never_outlives_its_owner(settings: BrokerSettings, moment: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, str(settings.data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "starting\n"
        if moment == "while it serves":
            assert psutil.Process(int(owner.stdout.readline())).name() == "java"
        else:
            while not any(name_of(process) == "java" for process in family_of(owner.pid)):
                assert owner.poll() is None
                time.sleep(0.01)
        family = family_of(owner.pid)
        owner.send_signal(number)
    assert_all_gone(family)
    assert settings.data_dir is not None
    with claim(Folder(settings.data_dir)):
        """Nothing holds the data folder any more."""


@pytest.fixture
def environment(settings: BrokerSettings) -> Iterator[dict[str, str]]:
    """For the command line, with a data folder of its own; whatever is started in the background is stopped."""
    variables = {**os.environ, "TRINITY_BUS_BROKER__DATA_DIR": str(settings.data_dir), "TRINITY_BUS_BROKER__PORT": "0"}
    variables.pop("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", None)
    yield variables
    cli(variables, "broker", "stop")


def cli(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    if arguments != ("broker", "start"):
        return finished(PROGRAM, *arguments, env=environment)
    # What it starts outlives it, and nothing that is forked does.
    command = [str(Path(sys.executable).with_name("trinity-bus")), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.timeout(900)
def test_a_background_broker_from_start_to_stop(environment: dict[str, str], settings: BrokerSettings) -> None:
    assert settings.data_dir is not None
    nothing = cli(environment, "broker", "status", "--json")
    assert nothing.returncode == 3
    assert json.loads(nothing.stdout)["running"] is False
    absent = cli(environment, "topics", "list")
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr.startswith("trinity-bus: no broker: start one")
    assert absent.stderr.count("\n") == 1

    started = cli(environment, "broker", "start")
    assert started.returncode == 0, started.stderr
    status = json.loads(cli(environment, "broker", "status", "--json").stdout)
    assert status["ready"] is True
    assert status["bootstrap_servers"] in started.stdout
    # Starting it again finds it.
    assert status["bootstrap_servers"] in cli(environment, "broker", "start").stdout
    assert json.loads(cli(environment, "broker", "status", "--json").stdout)["pid"] == status["pid"]

    empty = cli(environment, "topics", "list")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr.startswith("trinity-bus: namespace 'trinity' has no topics")
    assert cli(environment, "topics", "create").returncode == 0
    assert "absent" not in cli(environment, "topics", "list").stdout
    assert "had 8 partitions, and has 12" in cli(environment, "topics", "grow", "results", "12").stdout
    fixed = cli(environment, "topics", "grow", "tasks", "12")
    assert (fixed.returncode, fixed.stdout, fixed.stderr.count("\n")) == (2, "", 1)
    assert fixed.stderr.startswith("trinity-bus: tasks has 8 partitions for good")

    process = psutil.Process(status["pid"])
    assert cli(environment, "broker", "stop").stdout == "Stopped.\n"
    assert_all_gone([process])
