"""A mesh that is started from the console's configuration page: real services, which train, and end with it."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.support.mesh.mesh import environment
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.processes import Program, assert_all_gone
from tests.support.mesh.waiting import wait_until
from tests.support.sampled import at_night
from trinity_bus.config import KafkaSettings
from workers.demo.model import MAX_LENGTH, make_model
from workers.demo.subjects import COPY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LIMIT_S = 300.0
TOKEN = "the-token-of-operators"  # noqa: S105 - of a test
TASKS = Path(__file__).parents[2] / "workers" / "demo" / "tasks" / "train.jsonl"


class ConsoleProcess(Program):
    """A console as a service of its own, asked over HTTP as an operator's browser asks it."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        (port,) = quiet_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        own = {"folder": folder / "index", "port": port, "token": TOKEN}
        env = environment(kafka, **{f"console__{name}": value for name, value in own.items()})
        super().__init__(
            [sys.executable, "-m", "workers.cli.app", "run", "console"], folder / "console.out", env, folder
        )

    def page(self, path: str, form: dict[str, str] | None = None) -> str:
        """What a page says; the one that a form leads to. Raises URLError where nobody answers or it is refused."""
        data = None
        if form is not None:
            proof = re.search(r'name="proof" value="([^"]+)"', self.page("/configuration"))
            assert proof is not None
            data = urlencode({**form, "proof": proof[1]}).encode()
        asked = Request(self.address + path, data, {"Authorization": f"Bearer {TOKEN}"})  # noqa: S310 - of this test
        with urlopen(asked, timeout=60) as answer:  # noqa: S310
            return unescape(answer.read().decode())

    def says(self, path: str, text: str) -> bool:
        """Whether a page can be had, and has a text in it."""
        assert self.process.poll() is None, self.said()
        try:
            return text in self.page(path)
        except (URLError, TimeoutError, ConnectionError):
            return False

    def services(self) -> list[psutil.Process]:
        """All living processes but the console's own."""
        return [one for one in self.family() if one.pid != self.process.pid]


@pytest.fixture
def console(kafka: KafkaSettings, tmp_path: Path) -> Iterator[ConsoleProcess]:
    own = kafka.model_copy(update={"namespace": f"console-runs-{os.getpid()}"})
    started = ConsoleProcess(own, tmp_path)
    try:
        yield started
    except BaseException:
        print(started.said())
        raise
    finally:
        started.kill()


@pytest.mark.parametrize("is_stopped", [False, at_night(True)])
def test_a_mesh_is_run_and_stopped_and_ends_with_a_console_that_is_killed(
    console: ConsoleProcess, tmp_path: Path, is_stopped: bool
) -> None:
    answers = {
        "mesh.namespace": f"console-runs-{os.getpid()}",
        "mesh.model_path": str(make_model(tmp_path / "model", 0)),
        "mesh.dtype": "float32",
        "mesh.max_model_len": str(MAX_LENGTH),
        "mesh.max_tokens": str(COPY.max_tokens),
        "coordinator.batch_size": "8",
        "coordinator.group_size": "4",
        "explorer.cpu_kvcache_gib": "0.5",
        "trainer.threads": "1",
        "trainer.checkpoint_dir": str(tmp_path / "checkpoints"),
        "rows.path": str(TASKS),
    }
    wait_until(lambda: console.says("/configuration", "Which model is to learn?"), "console", LIMIT_S, 0.1)
    assert "Nothing is wrong" in console.page("/configuration", answers)
    assert "starting" in console.page("/configuration/run", answers)
    wait_until(lambda: console.says("/configuration/mesh", "running"), "mesh that was launched", LIMIT_S, 0.2)
    for service in ("coordinator", "trainer", "explorer-0", "taskset"):
        assert console.says("/configuration/mesh", service)
    wait_until(lambda: console.says("/steps", "/steps/1"), "step that was trained", LIMIT_S, 0.5)

    running = console.services()
    assert len(running) >= len(("coordinator", "trainer", "explorer", "taskset"))
    if is_stopped:
        assert "Nothing that was started from this console runs" in console.page("/configuration/stop", {})
        assert_all_gone(running)
        assert console.services() == []
        # It goes on from where it was.
        console.page("/configuration/run", answers)
        wait_until(lambda: console.says("/configuration/mesh", "running"), "mesh that was launched again", LIMIT_S, 0.2)
        running = console.services()
    # A console that dies takes it along.
    os.kill(console.process.pid, signal.SIGKILL)
    assert_all_gone(running)
