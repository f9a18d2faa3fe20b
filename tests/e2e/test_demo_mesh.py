"""The demo, shortened: real Kafka, two real vLLM engines, real Megatron-core, separate processes, one command."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.mesh.processes import Program, command_of, name_of
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.telemetry import load_spans
from trinity_bus.telemetry.tree import Node, trace_of_task
from trinity_bus.view import MeshState, follow

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 900.0
"""Of a whole demo. Two engines that start beside other tests take a minute, and many on a machine at its limit."""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_S + 300)]

STEPS = 3
EXPLORERS = {"explorer-0", "explorer-1"}


class Demo(Program):
    def __init__(self, kafka: KafkaSettings, run_dir: Path, *options: str, embedded: bool = False) -> None:
        self.run_dir = run_dir
        self.kafka = kafka.model_copy(update={"namespace": f"{kafka.namespace}.{run_dir.name}"})
        environment = {
            **os.environ,
            "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers or "",
            "TRINITY_BUS_MESH__NAMESPACE": kafka.namespace,
        }
        if embedded:
            del environment["TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS"]
            # Its broker is killed: on a busy machine it may take a minute to come back.
            environment["TRINITY_BUS_KAFKA__OUTAGE_S"] = "240"
        command = [sys.executable, "-m", "workers.cli.app", "demo", "--run-dir", str(run_dir), *options]
        super().__init__(command, run_dir.with_suffix(".out"), environment)

    def log(self, service: str) -> Path:
        return self.run_dir / "logs" / f"{service}.log"

    def service(self, name: str) -> psutil.Process | None:
        """The process of a service itself, not that of its guard."""
        for process in self.family():
            if command_of(process).split() == ["trinity-bus:", name]:
                return process
        return None


@pytest.fixture
def namespaced(kafka: KafkaSettings, request: pytest.FixtureRequest) -> KafkaSettings:
    return kafka.model_copy(update={"namespace": f"demo-{abs(hash(request.node.nodeid)) % 10**8}-{os.getpid()}"})


@pytest.fixture
def start(namespaced: KafkaSettings, tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def run(*options: str, embedded: bool = False) -> Demo:
        started.append(Demo(namespaced, tmp_path / "run", *options, embedded=embedded))
        return started[-1]

    yield run
    for demo in started:
        demo.kill()


async def seen(kafka: KafkaSettings) -> MeshState:
    """What any client can see of the mesh, afterwards."""
    async with Bus(kafka, client_id="test") as bus, follow(bus, whole=True) as follower:
        return follower.state


def names(node: Node) -> Iterator[str]:
    yield node.span.name
    for child in node.children:
        yield from names(child)


def asked(model: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a user gets who asks the trained model."""
    command = [sys.executable, "-m", "workers.cli.app", "ask", *words, "--model", model]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)


async def test_tasks_become_a_better_model(start: Callable[..., Demo]) -> None:
    demo = start("--steps", str(STEPS), "--seed", "3", "--limit", f"{LIMIT_S:g}")
    assert demo.ended(LIMIT_S) == 0, demo.said()

    summary: dict[str, Any] = json.loads((demo.run_dir / "summary.json").read_text())
    assert {key: summary[key] for key in ("seed", "explorers", "model_version", "held_out_tasks")} == {
        "seed": 3,
        "explorers": 2,
        "model_version": STEPS,
        "held_out_tasks": 200,
    }
    assert 0 <= summary["reward_before"] < 0.3
    assert summary["reward_after"] >= summary["reward_before"]
    assert list(summary["stages"]) == [
        "start Kafka",
        "start the services",
        "test before",
        "train",
        "test after",
        "report",
    ]
    assert summary["train_seconds"] == summary["stages"]["train"] > 0
    command = [sys.executable, "-m", "benchmarks.demo", str(demo.run_dir / "summary.json"), "--short"]
    assert "time to first reward" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert [step["step"] for step in summary["steps"]] == [1, 2, 3]
    assert all(value is not None for step in summary["steps"] for value in step.values())
    assert (demo.run_dir / "reward.png").stat().st_size > 1000
    assert "held-out reward after training" in demo.said()

    view = await seen(demo.kafka)
    # Strictly on-policy: each batch was drawn by the weights that it then changed, by nobody else's.
    for step in view.trained:
        assert step.metrics["staleness_max"] == 0
        assert step.metrics["samples"] == 64 * 16
        # What the engines say of their tokens is what the trainer would say of them: the weights arrived, all of them.
        assert step.metrics["mismatch_k3"] < 1e-6
        assert step.metrics["weights_mismatched"] == 0
    receivers: set[str] = set()
    for version in range(STEPS + 1):
        took = view.synced(version)
        # One that is slow may be told the next version before it has taken this one.
        assert took.keys() <= EXPLORERS
        assert took
        receivers |= took.keys()
        assert {sync.checksum for sync in took.values()} == {view.steps[version].checksum}
    assert receivers == EXPLORERS
    assert view.states == {"finalized": STEPS + 2}
    assert view.rollouts == {"completed": STEPS * 64 + 2 * 200}

    found = trace_of_task(load_spans(demo.run_dir), summary["trace_task"])
    (root,) = found.roots
    own, gradient = list(names(root)), [name for node in found.linked for name in names(node)]
    for name in ("send tasks", "process tasks", "dispatch", "rollout sequence", "send experiences"):
        assert name in own
    assert any(name.startswith("text_completion ") for name in own)
    for name in ("train step", "publish version", "announce version"):
        assert name in gradient
    assert gradient.count("sync weights") >= 1

    assert asked(summary["model"], "copy 3 1 4 =").stderr == ""


@pytest.mark.nightly
def test_a_real_model_is_fetched_and_taught_sums(start: Callable[..., Demo]) -> None:
    made = subprocess.run(["tools/smollm2.sh"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    if made.returncode == 3:
        pytest.skip(f"not run, for its model cannot be had: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    demo = start("sums", "--steps", str(STEPS), "--limit", f"{LIMIT_S:g}")
    assert demo.ended(LIMIT_S) == 0, demo.said()

    summary: dict[str, Any] = json.loads((demo.run_dir / "summary.json").read_text())
    assert (summary["subject"], summary["model_version"], summary["held_out_tasks"]) == ("sums", STEPS, 200)
    assert 0.2 < summary["exact_before"] < 0.5
    assert summary["exact_after"] > 0.2
    assert [step["step"] for step in summary["steps"]] == [1, 2, 3]
    assert (Path(summary["model"]) / "chat_template.jinja").is_file()
    told = asked(summary["model"], "--system", "2 + 3", "= 5", "41 + 35").stdout
    assert any(character.isdigit() for character in told)


@pytest.mark.parametrize("moment", ["at once", "services start"])
def test_ctrl_c_leaves_no_process(start: Callable[..., Demo], moment: str) -> None:
    demo = start("--limit", f"{LIMIT_S:g}")
    if moment == "at once":
        demo.until(demo.log("demo").exists, "its log was there", LIMIT_S)
    else:
        demo.until(lambda: demo.service("explorer-0") is not None, "there was an explorer", LIMIT_S)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(LIMIT_S) == 130, demo.said()


@pytest.mark.nightly  # `up` has the same for each change, with an engine and a trainer that are none
def test_a_service_and_a_broker_that_die_are_started_again_and_the_demo_goes_on(start: Callable[..., Demo]) -> None:
    # The other subject, so that it is run at all: turns, and calls of a tool.
    demo = start("tools", "--steps", "1", "--limit", f"{LIMIT_S:g}", embedded=True)
    demo.until(lambda: demo.service("trainer") is not None, "there was a trainer", LIMIT_S)
    trainer = demo.service("trainer")
    assert trainer is not None
    trainer.kill()
    demo.until(lambda: "test before" in demo.said(), "its services served", LIMIT_S)
    (kafka,) = [process for process in demo.family() if name_of(process) == "java"]
    kafka.kill()
    assert demo.ended(LIMIT_S) == 0, demo.said()
    assert re.search(r"trainer was ended by SIGKILL.*; it is started again", demo.said())
    assert re.search(r"Kafka was ended by SIGKILL.*; it is started again, and the services wait for it", demo.said())


def test_a_limit_that_is_too_short_says_so(start: Callable[..., Demo]) -> None:
    demo = start("--limit", "3")
    assert demo.ended(LIMIT_S) == 1
    assert "not done after 3 s (--limit); so far: " in demo.said()
