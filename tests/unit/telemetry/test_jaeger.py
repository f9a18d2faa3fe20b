"""The spans of a task out of Jaeger, of a server that answers as Jaeger does."""

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fakes.http import Answering, served
from trinity_bus.telemetry import TaskNotTracedError, load_task_spans
from trinity_bus.telemetry.jaeger import JaegerError
from trinity_bus.telemetry.tree import trace_of_task

TASK, STEP, OTHER = "a" * 32, "b" * 32, "c" * 32
AT = 1_700_000_000 * 10**9


def span(trace: str, span_id: str, name: str, at_ns: int = AT, **more: Any) -> dict[str, Any]:
    return {
        "traceId": trace, "spanId": span_id * 16, "name": name, "startTimeUnixNano": str(at_ns),
        "endTimeUnixNano": str(at_ns + 1000), "status": {}, **more,
    }  # fmt: skip


def answer(service: str, *spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"result": {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}}


class Jaeger:
    """Answers what it is told to, and remembers what it was asked."""

    url = ""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def has(self, path: str, *documents: dict[str, Any], code: int = 200) -> None:
        self.answers[path] = (code, "\n".join(map(json.dumps, documents)))


@pytest.fixture
def jaeger() -> Iterator[Jaeger]:
    jaeger = Jaeger()

    class Handler(Answering):
        def reply(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            jaeger.asked.append((url.path, dict(urllib.parse.parse_qsl(url.query))))
            code, body = jaeger.answers.get(url.path, (404, '{"error": "not found"}'))
            self.answer(code, body.encode())

    with served(Handler) as jaeger.url:
        yield jaeger


def with_task(jaeger: Jaeger) -> None:
    jaeger.has("/api/traces", {"data": [{"traceID": TASK, "spans": []}]})
    task_id = {"key": "rl.task.id", "value": {"stringValue": "t"}}
    jaeger.has(
        f"/api/v3/traces/{TASK}",
        answer("coordinator", span(TASK, "1", "process tasks", attributes=[task_id])),
        answer("explorer", span(TASK, "2", "rollout sequence", AT + 5, parentSpanId="1" * 16, attributes=[task_id])),
    )


def test_a_task_comes_with_the_train_step_that_links_to_it_and_with_no_other(jaeger: Jaeger) -> None:
    with_task(jaeger)
    jaeger.has(
        "/api/v3/traces",
        answer(
            "trainer",
            span(STEP, "3", "train step", AT + 9, links=[{"traceId": TASK, "spanId": "2" * 16}]),
            span(STEP, "4", "publish version", AT + 10, parentSpanId="3" * 16),
            span(OTHER, "5", "train step", AT + 11, links=[{"traceId": OTHER, "spanId": "6" * 16}]),
        ),
    )
    spans = load_task_spans(jaeger.url + "/", "t")
    assert [found.name for found in spans] == ["process tasks", "rollout sequence", "train step", "publish version"]
    assert spans[1].service == "explorer"
    found = trace_of_task(spans, "t")
    assert [node.span.name for node in found.roots] == ["process tasks"]
    assert [node.span.name for node in found.linked] == ["train step"]

    path, asked = jaeger.asked[0]
    assert path == "/api/traces"
    assert json.loads(asked["tags"]) == {"rl.task.id": "t"}
    path, asked = jaeger.asked[-1]
    assert asked["query.start_time_min"] == "2023-11-14T22:13:20Z"
    assert asked["query.start_time_max"] == "2023-11-14T22:14:20Z"


def test_a_task_that_is_not_trained_on_comes_alone_and_one_that_is_not_there_says_why(jaeger: Jaeger) -> None:
    with_task(jaeger)
    assert [found.name for found in load_task_spans(jaeger.url, "t")] == ["process tasks", "rollout sequence"]
    jaeger.has("/api/traces", {"data": None})
    with pytest.raises(TaskNotTracedError, match=r"no trace of task 'gone'.* keeps the newest only"):
        load_task_spans(jaeger.url, "gone")


def test_who_is_no_jaeger_or_not_there_is_an_error(jaeger: Jaeger) -> None:
    jaeger.answers["/api/traces"] = (200, "<html>")
    with pytest.raises(JaegerError, match="is it Jaeger"):
        load_task_spans(jaeger.url, "t")
    jaeger.has("/api/traces", {"error": "too many"}, code=429)
    with pytest.raises(JaegerError, match="answered 429"):
        load_task_spans(jaeger.url, "t")
    with pytest.raises(JaegerError, match="is no address of Jaeger"):
        load_task_spans("file:///etc/passwd", "t")
    with pytest.raises(JaegerError, match=r"cannot reach Jaeger .* is compose.observability.yaml up"):
        load_task_spans("http://127.0.0.1:1", "t")
