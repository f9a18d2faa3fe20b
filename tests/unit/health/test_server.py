import http.client
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import trinity_bus.health
from trinity_bus import awake
from trinity_bus.config import HealthSettings
from trinity_bus.errors import ConfigError
from trinity_bus.health.process import HealthServer, HealthState, Phase

PROBE = Path(trinity_bus.health.__path__[0]) / "probe.sh"


class Endpoint:
    def __init__(self) -> None:
        self.state = HealthState(awake.now(), wedged_s=1000, start_s=1000, unread_s=1000)
        self.broker: str | None = None
        self.server = HealthServer(HealthSettings(port=0), self.state, lambda: self.broker)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def probe(self, path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", PROBE, path],
            env={"TRINITY_BUS_HEALTH__PORT": str(self.server.port)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.close()


def test_starting_then_ready_then_without_a_broker(endpoint: Endpoint) -> None:
    assert endpoint.get("/livez") == (200, "starting\n")
    assert endpoint.get("/readyz") == (503, "starting\n")
    endpoint.state.phase = Phase.WORKING
    assert endpoint.get("/readyz") == (200, "ready\n")
    endpoint.broker = "no broker answers"
    assert endpoint.get("/readyz") == (503, "no broker answers\n")
    assert endpoint.get("/livez") == (200, "alive\n")
    assert endpoint.get("/metrics")[0] == 404


def test_it_listens_at_an_address_of_six_bytes_and_more() -> None:
    server = HealthServer(
        HealthSettings(host="::1", port=0), HealthState(0.0, wedged_s=1, start_s=1, unread_s=1), lambda: None
    )
    try:
        socket.create_connection(("::1", server.port), timeout=10).close()
    finally:
        server.close()


def test_the_probe_of_a_container_ends_with_the_answer(endpoint: Endpoint) -> None:
    endpoint.state.phase = Phase.WORKING
    good = endpoint.probe("readyz")
    assert (good.returncode, good.stdout) == (0, "ready\n")
    endpoint.broker = "gone"
    bad = endpoint.probe("readyz")
    assert (bad.returncode, bad.stdout) == (1, "gone\n")
    assert endpoint.probe("livez").returncode == 0


def test_a_probe_of_a_process_that_does_not_listen_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for environment, said in (({"TRINITY_BUS_HEALTH__PORT": str(port)}, "refused"), ({}, "serves no health endpoint")):
        done = subprocess.run(["bash", PROBE], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert said in done.stderr


def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"TRINITY_BUS_HEALTH__PORT={port}: cannot listen .* another port"):
            HealthServer(HealthSettings(port=port), HealthState(0.0, wedged_s=1, start_s=1, unread_s=1), lambda: None)
