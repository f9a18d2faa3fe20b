"""Every query of every panel finds data in the stack's Prometheus, while it trains and things go wrong in it."""

import asyncio
import json
import math
import os
import subprocess
import sys
import uuid
from urllib.request import Request, urlopen

import pytest

from schemas import Task
from schemas.topics import TASKS
from tests.support.mesh.compose import ComposeStack
from tests.support.mesh.prometheus_names import dashboards, panel_queries
from tests.support.mesh.waiting import wait_until
from trinity_bus.bus import Bus

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]

LIMIT_S = 600.0
TOO_LONG = "copy " + "1 " * 200 + "="
"""More tokens than the model of the stack takes."""

SEND_TOO_MUCH = """
import asyncio, os, sys
from schemas import Task
from schemas.topics import TASKS
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, TelemetrySettings
from trinity_bus.errors import RecordTooLargeError
from trinity_bus.telemetry import setup_telemetry

async def main():
    telemetry = setup_telemetry("test", TelemetrySettings(metrics_interval_s=2))
    kafka = KafkaSettings(bootstrap_servers=sys.argv[1], namespace=sys.argv[2])
    async with Bus(kafka, client_id="test") as bus, bus.producer() as producer:
        print("sending", flush=True)
        while True:
            try:
                await producer.send_raw(TASKS, "large", bytes(TASKS.max_message_bytes + 1))
            except RecordTooLargeError:
                await asyncio.sleep(1)

asyncio.run(main())
"""


def make_trouble(stack: ComposeStack) -> None:
    """A record that is no task, and tasks that fail however often they are tried."""

    async def produce() -> None:
        async with Bus(stack.kafka, client_id="test") as bus, bus.producer() as producer:
            await (await producer.send_raw(TASKS, "bad", b"\xc1 no task"))
            for i in range(4):
                task = Task(
                    task_id=f"too-long-{uuid.uuid4().hex}-{i}", workflow="sequence", prompt=TOO_LONG, answer="1"
                )
                await (await producer.send(TASKS, task.task_id, task))

    asyncio.run(produce())


def ask_the_gateway(stack: ComposeStack) -> None:
    """One request of an agent; the collector reads of it when it asks the gateway next."""
    asked = {"model": "policy", "messages": [{"role": "user", "content": "copy 3 1 4 ="}]}
    headers = {"Content-Type": "application/json", **stack.gateway_login}
    request = Request(f"{stack.gateway_url}/v1/chat/completions", json.dumps(asked).encode(), headers)  # noqa: S310 - of this machine
    with urlopen(request, timeout=60) as answer:  # noqa: S310 - of this machine
        assert json.load(answer)["choices"]


def has_data(stack: ComposeStack, expression: str) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in stack.query(expression))


def test_every_panel_has_data(stack: ComposeStack, figures: dict[str, str]) -> None:
    make_trouble(stack)
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_url}
    arguments = [sys.executable, "-c", SEND_TOO_MUCH, stack.bootstrap, stack.kafka.namespace]
    queries = list(panel_queries())
    seen: set[str] = set()

    def all_seen() -> bool:
        # Rates want a request between two looks.
        ask_the_gateway(stack)
        # Not all at one moment: what goes wrong passes, and the evaluation comes later.
        seen.update(query.where for query in queries if query.where not in seen and has_data(stack, query.expression))
        return len(seen) == len(queries)

    with subprocess.Popen(arguments, env=environment) as sender:
        try:
            wait_until(all_seen, f"data for each of {len(queries)} queries", LIMIT_S, every_s=5.0)
        except AssertionError:
            pytest.fail(f"no data for {sorted({query.where for query in queries} - seen)}")
        finally:
            sender.kill()
    panels = sum(len(board["panels"]) for board in dashboards())
    figures["panels of dashboards whose queries found data"] = f"{panels}, {len(queries)} queries"
