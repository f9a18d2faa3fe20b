"""What telemetry costs: tokens per second of an explorer that exports, over those of one that does not.

Two explorers, each the whole service in processes of its own: one sends spans, metrics and log lines to an OTLP sink on
this machine, in batches, as services do; the other has no endpoint and measures nothing. They take turns at the same
tasks, one idle while the other works, and who is first changes from round to round. Every order belongs to a trace that
is recorded, so each rollout has its spans: those of the attempt, of each request to the engine, and of the send.

The model is tiny: a step of the engine takes a fraction of a millisecond here, and tens on a GPU with a model that is
worth training, while the spans of a task cost the same. So this is the worst case.

On a machine that others use too, seconds are noisy, and a difference of a percent is lost in them. So the cost is also
taken apart: the time that a processor spends on one span, made, packed and sent, times the spans of a task, over all
that processors spend on a task.
"""

import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvloop
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks._cluster import cluster_to_measure, environment, make_topics, service
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from benchmarks._scheduling.mesh import usage
from benchmarks._tiny_model import TINY, make_tiny_qwen3
from benchmarks.rollout import (
    GROUP,
    PROMPT,
    RESPONSE,
    SHORT_TASKS,
    TASKS,
    explorer_settings,
    incarnation,
    serve_weights,
    through_explorer,
)
from schemas.topics import EXPLORER_EVENTS
from trinity_bus.bus import Bus
from trinity_bus.config import ExplorerSettings, KafkaSettings
from trinity_bus.config.mesh import is_of_mesh
from trinity_bus.runtime.process import Child

ROUNDS = 12
GOAL = 0.99
GRACE_S = 60.0
CHECK_EVERY_S = 1.0
SPANS = 5000
ATTRIBUTES = 12
SINK = Path(__file__).with_name("_otlp_sink.py")
WITH, WITHOUT = "with", "without"
METRICS_EVERY_S = 5
"""As the compose stack has it."""


def environment_of(kafka: KafkaSettings, model: Path, name: str, endpoint: str | None) -> dict[str, str]:
    settings: dict[str, object] = {"telemetry.metrics_interval_s": METRICS_EVERY_S}
    told = explorer_settings(str(model)).model_dump(mode="json", exclude_defaults=True)
    for key, value in (told | {"name": name}).items():
        section = "mesh" if is_of_mesh(ExplorerSettings.model_fields[key]) else "explorer"
        settings[f"{section}.{key}"] = value
    own = {key: value for key, value in environment(kafka, settings).items() if not key.startswith("OTEL_")}
    return own if endpoint is None else {**own, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}


def span_cost(endpoint: str) -> float:
    """Processor seconds of one span of a request: made, packed and sent to the sink, under another path."""
    provider = TracerProvider(resource=Resource.create({"service.name": "explorer"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/cost")
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=2 * SPANS))
    tracer = provider.get_tracer("benchmark")
    attributes = {f"gen_ai.request.parameter_{i}": float(i) for i in range(ATTRIBUTES)}
    before = time.process_time()
    for _ in range(SPANS):
        with tracer.start_as_current_span("text_completion tiny", attributes=attributes):
            pass
    provider.force_flush()
    provider.shutdown()
    return (time.process_time() - before) / SPANS


@contextlib.contextmanager
def otlp_sink(received: dict[str, int]) -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SINK)], stdout=subprocess.PIPE, text=True) as sink:  # noqa: S603 - our own
        try:
            assert sink.stdout is not None
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
            sink.send_signal(signal.SIGTERM)
            received.update(json.loads(sink.communicate(timeout=GRACE_S)[0]))
        finally:
            sink.kill()


async def measure(
    kafka: KafkaSettings, model: Path, explorers: dict[str, Child], rounds: int, tasks: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Seconds and seconds of processors per token, and tokens of a task, in each round; both ways taking turns."""
    costs: dict[str, list[tuple[float, float, float]]] = {way: [] for way in explorers}
    async with (
        Bus(kafka, client_id="benchmark") as bus,
        bus.producer() as producer,
        bus.reader(EXPLORER_EVENTS, start="beginning") as events,
    ):
        incarnations = {}
        for epoch, way in enumerate(explorers, 1):
            incarnations[way] = await incarnation(events, way)
            await serve_weights(producer, events, incarnations[way], model, name=way, epoch=epoch)
        for number in range(rounds + 1):
            for way in sorted(explorers, reverse=number % 2 == 1):
                context = f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"
                before = usage(explorers[way].pid).cpu_s
                tokens, seconds = await through_explorer(
                    producer, events, incarnations[way], number, tasks=tasks, name=way, traceparent=context
                )
                spent = usage(explorers[way].pid).cpu_s - before
                # The first round of each warms up.
                if number:
                    costs[way].append((seconds / tokens, spent / tokens, tokens / tasks))
    return costs


async def while_they_run[T](explorers: dict[str, Child], measuring: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(measuring)
    while not (await asyncio.wait([task], timeout=CHECK_EVERY_S))[0]:
        for way, child in explorers.items():
            if (status := child.poll()) is not None:
                task.cancel()
                raise RuntimeError(f"the explorer {way!r} ended with status {status}; see its log")
    return task.result()


def main() -> None:
    options = parser(__doc__).parse_args()
    rounds, tasks = (1, SHORT_TASKS) if options.short else (ROUNDS, TASKS)
    received: dict[str, int] = {}
    with cluster_to_measure() as cluster, otlp_sink(received) as endpoint:
        kafka = cluster.unused()
        model = make_tiny_qwen3(cluster.folder / "model", seed=0, shape=TINY)
        uvloop.run(make_topics(kafka))
        a_span = span_cost(endpoint)
        with contextlib.ExitStack() as running:
            explorers: dict[str, Child] = {}
            for way, target in ((WITH, endpoint), (WITHOUT, None)):
                log, env = cluster.folder / f"{way}.log", environment_of(kafka, model, way, target)
                child = running.enter_context(Child(service("explorer"), env=env, output=log))
                # At its end it sends what it held back.
                running.callback(child.stop, GRACE_S)
                explorers[way] = child
            began = time.perf_counter()
            costs = uvloop.run(while_they_run(explorers, measure(kafka, model, explorers, rounds, tasks)))
            minutes = (time.perf_counter() - began) / 60
    spans = received["spans"] / ((rounds + 1) * tasks)
    a_task = statistics.median(spent * tokens for _, spent, tokens in costs[WITHOUT])
    seconds, processors = (
        [without[i] / with_it[i] for with_it, without in zip(costs[WITH], costs[WITHOUT], strict=True)] for i in (0, 1)
    )
    report(
        "tracing",
        f"{tasks} tasks x {GROUP} samples x {PROMPT} + {RESPONSE} tokens, 0.6 M parameters, an explorer on a CPU",
        [
            Row("tokens/s with telemetry over without", statistics.median(seconds), "", GOAL),
            Row("tokens/processor second with telemetry over without", statistics.median(processors), ""),
            less("processor time of the spans over all of a task", a_span * spans / a_task, "", 1 - GOAL),
            less("processor time of a span", a_span * 1e6, "us"),
            less("processor time of a task", a_task * 1e3, "ms"),
            Row("with telemetry", 1 / statistics.median(cost[0] for cost in costs[WITH]), "tokens/s"),
            Row("without", 1 / statistics.median(cost[0] for cost in costs[WITHOUT]), "tokens/s"),
            Row("spans of a task", spans, "spans"),
            Row("sent for a task", received["/v1/traces"] / ((rounds + 1) * tasks), "bytes"),
        ],
        options,
        notes=[
            f"ratio of each of {rounds} rounds: {', '.join(f'{ratio:.3f}' for ratio in seconds)}",
            f"by processor time: {', '.join(f'{ratio:.3f}' for ratio in processors)}",
            f"in {minutes:.1f} minutes",
        ],
    )


if __name__ == "__main__":
    main()
