"""The whole stack as its users run it: up, tasks from a console, batches, versions, traces, metrics, an orderly end."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from schemas import BatchRecord, Record, TaskResult
from schemas.topic import Topic
from schemas.topics import BATCHES, RESULTS
from tests.support.mesh.compose import ComposeStack, docker
from tests.support.mesh.waiting import wait_until
from trinity_bus.bus import Bus
from trinity_bus.telemetry import SpanRecord, TaskNotTracedError, load_task_spans
from trinity_bus.telemetry.tree import Node, TaskTrace, trace_of_task
from trinity_bus.view import MeshState

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]

OURS = ("coordinator", "explorer", "trainer", "taskset", "gateway", "console")
SERVICES = (*OURS, "kafka", "otel-collector", "jaeger", "prometheus")
PRODUCE = "/opt/kafka/bin/kafka-console-producer.sh --bootstrap-server localhost:19092 --topic trinity.tasks"


def test_it_comes_up_and_everything_is_healthy(stack: ComposeStack, figures: dict[str, str]) -> None:
    figures["from up to healthy"] = f"{stack.up_seconds:.1f} s"
    for service in SERVICES:
        containers = stack.containers(service)
        assert len(containers) == (2 if service == "coordinator" else 1), service
        assert all(stack.healthy(container) for container in containers), service
    (model,) = stack.containers("model")
    assert stack.state(model)["ExitCode"] == 0


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_is_root_and_nobody_can_write_to_its_root(stack: ComposeStack, service: str) -> None:
    for container in stack.containers(service):
        told = docker(
            "inspect", "--format", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}", container
        ).stdout.split()
        assert len(told) == 2, f"{service} runs as root"
        assert told[0].split(":")[0] not in {"0", "root"}
        assert told[1] == "true"


def test_it_trains_and_the_explorer_serves_what_was_learnt(stack: ComposeStack, figures: dict[str, str]) -> None:
    view = stack.watch(lambda view: len(view.trained) >= 1, "first step")
    first = view.trained[0]
    figures["from up to the first trained step"] = f"{first.trained_at - stack.up_began:.1f} s"
    assert view.batches[first.batch_id or ""].state.value == "finalized"

    view = stack.watch(
        lambda view: any(view.synced(version) for version in view.steps if version >= 1), "synced version"
    )
    version = min(version for version in view.steps if version >= 1 and view.synced(version))
    assert {sync.checksum for sync in view.synced(version).values()} == {view.steps[version].checksum}


def record_on[R: Record](
    stack: ComposeStack, topic: Topic, kind: type[R], fits: Callable[[R], bool], limit_s: float
) -> R:
    """The first record of a topic that fits, however old."""

    async def find() -> R:
        async with Bus(stack.kafka, client_id="test") as bus, bus.reader(topic, start="beginning") as reader:
            while True:
                for received in await reader.batch(1.0):
                    if isinstance(received.record, kind) and fits(received.record):
                        return received.record

    async def within_limit() -> R:
        async with asyncio.timeout(limit_s):
            return await find()

    return asyncio.run(within_limit())


def result_of(stack: ComposeStack, task_id: str, limit_s: float) -> TaskResult:
    """The task's record on ``results``."""
    return record_on(stack, RESULTS, TaskResult, lambda result: result.task_id == task_id, limit_s)


@pytest.mark.parametrize(("code", "reward"), [("def add(a, b): return a + b", 1.0), ("def add(a, b): return 4", 0.0)])
def test_code_is_judged_in_a_sandbox_in_the_explorers_container(stack: ComposeStack, code: str, reward: float) -> None:
    task_id = f"tested-{time.time_ns()}"
    task = {"task_id": task_id, "workflow": "tested-code", "prompt": "copy 1 =", "answer": code}
    stack.compose("exec", "--no-TTY", "kafka", *PRODUCE.split(), stdin=json.dumps(task) + "\n")
    result = result_of(stack, task_id, limit_s=600)
    assert (result.status, result.error) == ("completed", None)
    assert result.metrics["reward"] == reward


def whole_trace(stack: ComposeStack, task_id: str, limit_s: float) -> TaskTrace:
    """The task's trace out of Jaeger, once a train step links to it and an explorer has taken what came of that."""
    spans: list[SpanRecord] = []

    def is_whole() -> bool:
        try:
            spans[:] = load_task_spans(stack.jaeger_url, task_id)
        except TaskNotTracedError:
            return False
        return {"send experiences", "train step", "sync weights"} <= {span.name for span in spans}

    wait_until(is_whole, f"whole trace of {task_id}", limit_s, every_s=2.0)
    return trace_of_task(spans, task_id)


def named(node: Node) -> Iterator[str]:
    yield node.span.name
    for child in node.children:
        yield from named(child)


def test_a_task_from_the_console_is_answered_and_is_one_trace_from_task_to_gradient(
    stack: ComposeStack, figures: dict[str, str]
) -> None:
    task_id = f"console-{time.time_ns()}"
    task = {"task_id": task_id, "workflow": "sequence", "prompt": "copy 3 1 4 =", "answer": "3 1 4"}
    began = time.monotonic()
    stack.compose("exec", "--no-TTY", "kafka", *PRODUCE.split(), stdin=json.dumps(task) + "\n")
    result = result_of(stack, task_id, limit_s=600)
    figures["a task from the console, behind 192 others"] = f"answered after {time.monotonic() - began:.1f} s"
    assert result.status == "completed"

    found = whole_trace(stack, task_id, limit_s=600)
    (root,) = found.roots
    assert not root.orphan
    names = set(named(root))
    assert {"process tasks", "dispatch", "rollout sequence", "text_completion tiny", "send experiences"} <= names
    (step,) = found.linked
    assert step.span.name == "train step"
    assert {"publish version", "announce version", "sync weights"} <= set(named(step))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_task_that_the_console_has_compressed_is_answered(stack: ComposeStack, codec: str) -> None:
    task_id = f"{codec}-{time.time_ns()}"
    task = {"task_id": task_id, "workflow": "sequence", "prompt": "copy 3 1 4 =", "answer": "3 1 4"}
    command = [*PRODUCE.split(), "--compression-codec", codec]
    stack.compose("exec", "--no-TTY", "kafka", *command, stdin=json.dumps(task) + "\n")
    assert result_of(stack, task_id, limit_s=600).status == "completed"


def all_is_trained(view: MeshState) -> bool:
    """Whether nothing is under way, and an explorer serves what came of the last batch."""
    if any(batch.state.value in {"running", "finalizing"} for batch in view.batches.values()):
        return False
    finalized = {
        batch.batch_id: batch.finalized_at or 0.0
        for batch in view.batches.values()
        if batch.batch_type == "train" and batch.state.value == "finalized"
    }
    newest = max(view.steps)
    serves = any(each.state == "ready" and each.model_version >= newest for each in view.explorers.values())
    return serves and max(finalized, key=finalized.__getitem__) in {step.batch_id for step in view.trained}


@pytest.fixture
def at_rest(stack: ComposeStack) -> Iterator[None]:
    """Without a taskset: no version comes while somebody looks."""
    stack.compose("stop", "taskset")
    try:
        stack.watch(all_is_trained, "end of what was under way", 300)
        yield
    finally:
        stack.compose("up", "--detach", "--wait", "--no-recreate", "taskset", limit_s=600)


@pytest.mark.usefixtures("at_rest")
async def test_an_agent_asks_the_gateway_and_what_it_draws_is_contributed(stack: ComposeStack) -> None:
    """Versions come by the second otherwise, and each batch is of the last two: most of what agents draw is late."""
    session = f"agent-{time.time_ns()}"
    async with aiohttp.ClientSession(stack.gateway_url, headers=stack.gateway_login) as http:
        async with http.get("/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["policy"]
        asked = {"model": "policy", "messages": [{"role": "user", "content": "copy 3 1 4 ="}]}
        async with http.post(f"/sessions/{session}/v1/chat/completions", json=asked) as answer:
            assert answer.status == 200, await answer.text()
        async with http.post("/feedback", json={"reward": 1.0, "session": session, "task_id": session}) as answer:
            assert (await answer.json())["counted"] == 1
        async with http.post("/commit", json={}) as answer:
            told = await answer.json()
    assert (told["contributed"], told["refused"]) == ({session: 1}, {})


def test_what_the_agent_has_drawn_is_trained_on(stack: ComposeStack) -> None:
    """By the batch that it joined, which the taskset has filled since."""

    def has_it(batch: BatchRecord) -> bool:
        return any(entry.task_id.startswith("agent-") and entry.status == "completed" for entry in batch.manifest)

    batch = record_on(stack, BATCHES, BatchRecord, has_it, 300)
    stack.watch(lambda view: batch.batch_id in {step.batch_id for step in view.trained}, "step of that batch", 300)


@pytest.mark.parametrize(
    "query",
    [
        "rl_coordinator_active == 1",
        "rl_coordinator_explorers >= 1",
        'rl_batches_total{rl_batch_state="finalized"} >= 1',
        'rl_tasks_total{rl_task_status="completed"} >= 1',
        "rl_tokens_total > 0",
        "rl_rollout_duration_seconds_count > 0",
        "rl_staleness_count > 0",
        "rl_train_step >= 1",
        "rl_train_step_duration_seconds_count >= 1",
        "rl_train_grad_norm",
        "rl_weight_sync_duration_seconds_count >= 1",
        "trinity_consumer_lag",
        "messaging_client_sent_messages_total > 0",
        'up{job="otel-collector"} == 1',
        'up{job="mesh"} == 1',
    ],
)
def test_its_metrics_are_in_prometheus(stack: ComposeStack, query: str) -> None:
    wait_until(lambda: bool(stack.query(query)), query, limit_s=300, every_s=1.0)


def test_nobody_has_run_out_of_memory(stack: ComposeStack) -> None:
    # Not the coordinators, which start anew where the other one has taken over, and not the taskset, which is made to.
    for service in ("kafka", "explorer", "trainer", "otel-collector", "jaeger", "prometheus"):
        for container in stack.containers(service):
            assert not stack.state(container)["OOMKilled"], f"{service} was killed for its memory"
            restarts = docker("inspect", "--format", "{{.RestartCount}}", container).stdout.strip()
            assert restarts == "0", f"{service} was started again by Docker"


def test_services_end_in_order_when_they_are_asked_to(stack: ComposeStack, figures: dict[str, str]) -> None:
    containers = {container: service for service in OURS for container in stack.containers(service)}
    for container, service in containers.items():
        began = time.monotonic()
        assert docker("stop", container).returncode == 0
        figures[f"{service} stops in"] = f"{time.monotonic() - began:.1f} s"
        assert stack.state(container)["ExitCode"] == 0, f"{service} did not end in order"
    assert docker("start", *containers).returncode == 0
    wait_until(lambda: all(map(stack.healthy, containers)), "healthy services", limit_s=600, every_s=1.0)
