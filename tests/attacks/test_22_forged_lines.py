"""Names and texts off the wire that would end a log line, steer a terminal, or carry a model's answer into traces."""

import io
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console, RenderableType

from benchmarks._records import completed
from schemas import Dispatch, PublishedVersion, Task
from schemas.codec import encode
from schemas.errors import printable
from schemas.groups.trainable import Bounds
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.bus import Bus, Producer
from trinity_bus.client import VersionRow
from trinity_bus.config import ExplorerSettings
from trinity_bus.runners.messages import RunDone
from trinity_bus.runners.service import RunnerDiedError, Runners, WorkflowRaisedError
from trinity_bus.telemetry.logs import FORMAT, TraceFormatter
from trinity_bus.telemetry.metrics import Occupancy
from trinity_bus.telemetry.setup import DiscreetSpanExporter
from trinity_bus.telemetry.spans import SpanRecord
from trinity_bus.telemetry.tree import tree_of_task
from trinity_bus.view import MeshState
from workers.cli.training.versions import table as versions_table
from workers.explorer import executor
from workers.explorer.outcome import ExplorerIdentity
from workers.explorer.turns import TurnKeeper
from workers.explorer.weights import ServedVersion
from workers.watch import mesh

EVIL = "x\r\n12:00:00 ERROR   workers.trainer: all is lost\x1b[2J\x1b]0;owned\x07\x9b31m\u202etxt\u2028[red]y[/]"
STEERS = set("\r\x1b\x07\x9b\u202e\u2028")


def line_of(text: str, error: Exception | None = None, template: str = FORMAT) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("workers.coordinator", logging.WARNING, __file__, 1, "explorer %s left", (text,), info)
    return TraceFormatter(template, datefmt="%H:%M:%S").format(record)


@given(st.text())
def test_no_text_makes_a_second_line(text: str) -> None:
    assert line_of(text).isprintable()
    assert len(line_of(text).splitlines()) == 1


@given(st.text())
def test_no_text_of_an_error_makes_a_line_that_looks_like_another(text: str) -> None:
    first, *rest = line_of("a", ValueError(text)).split("\n")
    assert first.endswith("explorer a left")
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_what_was_kept_of_a_traceback_by_another_formatter_is_not_taken() -> None:
    error = ValueError(EVIL)
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "it broke", None, (ValueError, error, None))
    logging.Formatter().format(record)
    assert record.exc_text is not None
    assert not STEERS & set(TraceFormatter(FORMAT).format(record))


def shown(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=300, force_terminal=False).print(renderable)
    return out.getvalue()


def status() -> RenderableType:
    view = MeshState()
    failed = completed(dispatch(), version=0, seconds=1, status="failed", completed_runs=0, error=EVIL)
    view.apply(failed, 1.0)
    return mesh(view)


def versions() -> RenderableType:
    record = PublishedVersion(
        model="policy",
        version=1,
        step=1,
        method="gloo",
        trainer="trainer-0",
        trainer_incarnation="life",
        checksum=EVIL,
        checkpoint=EVIL,
    )
    row = VersionRow(record=record, published_at=0, served_by=[], announced=True, pinned=False, asked_by=EVIL)
    return versions_table([row], 5)


def trace() -> RenderableType:
    span = SpanRecord(
        trace_id="0" * 32,
        span_id="1" * 16,
        name=EVIL,
        service=EVIL,
        start_ns=0,
        end_ns=1,
        error=EVIL,
        attributes={"rl.task.id": "t", "rl.workflow": EVIL},
    )
    return tree_of_task([span], "t")


@pytest.mark.parametrize("picture", [status, versions, trace])
def test_no_picture_steers_the_terminal(picture: Callable[[], RenderableType]) -> None:
    text = shown(picture())
    assert not STEERS & set(text)
    assert "[red]y[/]" in text or "all is lost" not in text
    assert not any(line.startswith("12:00:00") for line in text.splitlines())


def test_an_error_that_ends_a_command_is_one_line() -> None:
    code = (
        "import sys, workers.cli.app as app, trinity_bus.errors as e\n"
        "def fail():\n    raise e.TrinityError(sys.argv[1])\n"
        "app.app = fail\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, EVIL], capture_output=True, check=False)
    assert done.returncode == 2
    text = done.stderr.decode()
    assert text.startswith("trinity-bus: x")
    assert len(text.splitlines()) == 1
    assert not STEERS & set(text)


ANSWER = "The patient's name is"


def spans_of_an_error(wrap: Callable[[InMemorySpanExporter], SpanExporter]) -> InMemorySpanExporter:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(wrap(kept)))

    def think() -> None:
        with provider.get_tracer("t").start_as_current_span("think") as span:
            span.set_attribute("turn", 3)
            raise ValueError(f"not a number: {ANSWER}")

    with pytest.raises(ValueError, match=ANSWER):
        think()
    return kept


def test_spans_of_workflows_have_no_texts_of_errors() -> None:
    (told,) = spans_of_an_error(lambda kept: kept).get_finished_spans()
    assert ANSWER in told.to_json()
    (span,) = spans_of_an_error(DiscreetSpanExporter).get_finished_spans()
    assert ANSWER not in span.to_json()
    assert not span.status.is_ok
    (event,) = span.events
    assert event.attributes == {"exception.type": "ValueError"}
    assert span.attributes == {"turn": 3}
    assert span.context.span_id != 0


def test_printable_text_is_left_as_it_is() -> None:
    for text in ("", "naïve 東京 🙂", "a\\b", "quote \" and ' too"):
        assert printable(text) is text


class RaisingRunners:
    """FAKE runners, whose workflow quotes what the model has answered; or are out of reach."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def roll_out(self, order: Dispatch, raw: bytes, traceparent: str | None, **_: object) -> RunDone:
        raise self.error


async def span_of_an_attempt(
    error: Exception, monkeypatch: pytest.MonkeyPatch, *, record_content: bool
) -> ReadableSpan:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(executor, "_tracer", provider.get_tracer("t"))
    order = dispatch(task=Task(task_id="t", workflow="math", prompt="6*7="), attempt=1, timeout_s=60)

    served = ServedVersion(0)
    one = executor.RolloutExecutor(
        cast("Runners", RaisingRunners(error)),
        cast("Producer", FakeBus(FakeLog()).producer()),
        ExplorerIdentity(explorer="explorer-0", incarnation="life", model="policy"),
        bounds=Bounds(vocabulary=100, positions=100),
        served=served,
        slots=Occupancy("idle", 1),
        max_group_bytes=1 << 20,
        turns=TurnKeeper(cast("Bus", None), cast("Producer", None), on_first=lambda: None),
        settings=ExplorerSettings(),
        record_content=record_content,
    )
    one.start(order, encode(order), None)
    await one.finish(60)
    (span,) = kept.get_finished_spans()
    return span


async def test_an_attempts_span_tells_a_workflows_error_only_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    quoting = WorkflowRaisedError("ValueError", f"not a number: {ANSWER}")
    span = await span_of_an_attempt(quoting, monkeypatch, record_content=False)
    assert ANSWER not in span.to_json()
    assert not span.status.is_ok
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert ANSWER in (await span_of_an_attempt(quoting, monkeypatch, record_content=True)).to_json()
    # What is the explorer's own is told.
    span = await span_of_an_attempt(RunnerDiedError("its runner was killed"), monkeypatch, record_content=False)
    assert span.status.description == "RunnerDiedError: its runner was killed"


async def test_a_workflow_does_not_choose_names_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = WorkflowRaisedError(f"{ANSWER} {EVIL}", "what")
    span = await span_of_an_attempt(claims, monkeypatch, record_content=False)
    assert (span.attributes or {})["error.type"] == "WorkflowRaisedError"
