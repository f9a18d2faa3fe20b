"""The spans of one task, out of Jaeger: its own trace, and those of the train steps that link to it.

::

    /api/traces?tags={rl.task.id}   which traces have spans of the task
    /api/v3/traces/ID               their spans, as OTLP/JSON
    /api/v3/traces?...              the train steps of the minutes that follow, until one links to the task

Jaeger cannot search by links, so steps are read minute by minute; a step begins soon after the last rollout that it
trains on has ended.

==============================================  ================================================================
what happens                                    what comes of it
==============================================  ================================================================
Jaeger cannot be reached, or answers an error   :class:`JaegerError`
no trace has the task                           :class:`~trinity_bus.telemetry.tree.TaskNotTracedError`
no train step links to it yet, or in time       its own spans alone
==============================================  ================================================================
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from trinity_bus.errors import TrinityError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.spans import SpanRecord, spans_of_request
from trinity_bus.telemetry.tree import TaskNotTracedError

LOOKBACK_S: Final = 3 * 24 * 3600  # how far back tasks are looked for: as long as tasks are kept
STEP_WINDOW_S: Final = 60.0
STEP_WINDOWS: Final = 30  # train steps are looked for within so many windows after the task
_MOST_TRACES: Final = 20
_MOST_STEPS: Final = 500
_LIMIT_S: Final = 30.0
_LARGEST: Final = 256 * 1024 * 1024
_SERVICE: Final = "coordinator"  # has a span of every task, however it was sent


class JaegerError(TrinityError):
    pass


def load_task_spans(url: str, task_id: str) -> list[SpanRecord]:
    """All spans of a task and of the train steps that used it, in the order of their start.

    ``url`` is that of Jaeger's query service, such as ``http://localhost:16686``.

    Raises:
        JaegerError: It cannot be reached, or its answer is an error.
        TaskNotTracedError: It has no trace of the task.
    """
    base = url.rstrip("/")
    now = time.time()
    found = _get(
        f"{base}/api/traces",
        service=_SERVICE,
        tags=json.dumps({names.RL_TASK_ID: task_id}),
        start=str(int((now - LOOKBACK_S) * 1e6)),
        end=str(int(now * 1e6)),
        limit=str(_MOST_TRACES),
    )
    traces = [trace["traceID"] for document in found for trace in document.get("data") or ()]
    own = [span for trace in traces for span in _spans(_get(f"{base}/api/v3/traces/{trace}"))]
    if not own:
        raise TaskNotTracedError(
            f"Jaeger at {base} has no trace of task {task_id!r}: a collector that samples passes traces on after a "
            "minute or so, and not all of them; and Jaeger in memory keeps the newest only"
        )
    return sorted(own + _steps(base, own, now), key=lambda span: (span.start_ns, span.span_id))


def _steps(base: str, own: list[SpanRecord], now: float) -> list[SpanRecord]:
    traces = {span.trace_id for span in own}
    begin = min(span.start_ns for span in own) / 1e9
    for window in range(STEP_WINDOWS):
        start = begin + window * STEP_WINDOW_S
        if start > now:
            break
        spans = list(_spans(_get(
            f"{base}/api/v3/traces",
            **{
                "query.service_name": "trainer",
                "query.operation_name": "train step",
                "query.start_time_min": _rfc3339(start),
                "query.start_time_max": _rfc3339(start + STEP_WINDOW_S),
                # The second is the newer name of the first.
                "query.num_traces": str(_MOST_STEPS),
                "query.search_depth": str(_MOST_STEPS),
            },
        )))  # fmt: skip
        linked = {span.trace_id for span in spans if any(trace in traces for trace, _ in span.links)}
        if linked:
            return [span for span in spans if span.trace_id in linked]
    return []


def _spans(documents: list[dict[str, Any]]) -> Iterator[SpanRecord]:
    for document in documents:
        yield from spans_of_request(document.get("result") or {"resourceSpans": []})


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _get(url: str, **parameters: str) -> list[dict[str, Any]]:
    # The JSON documents of an answer, one after the other; none where nothing was found.
    if not url.startswith(("http://", "https://")):
        raise JaegerError(f"{url} is no address of Jaeger: give one such as http://localhost:16686")
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    try:
        with urllib.request.urlopen(url + query, timeout=_LIMIT_S) as answer:  # noqa: S310 - checked above
            text = answer.read(_LARGEST).decode().strip()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise JaegerError(f"{url} answered {error.code}: {error.read(500).decode(errors='replace').strip()}") from error
    except OSError as error:
        raise JaegerError(f"cannot reach Jaeger at {url} ({error}): is compose.observability.yaml up?") from error
    documents, decoder, position = [], json.JSONDecoder(), 0
    try:
        while position < len(text):
            document, position = decoder.raw_decode(text, position)
            documents.append(document)
            position += len(text[position:]) - len(text[position:].lstrip())
    except ValueError as error:
        raise JaegerError(f"{url} did not answer in JSON ({error}): is it Jaeger?") from error
    return documents
