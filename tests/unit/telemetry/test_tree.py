import io

import pytest
from opentelemetry.util.types import AnyValue
from rich.console import Console

from trinity_bus.telemetry import SpanRecord, TaskNotTracedError, tree_of_task
from trinity_bus.telemetry.tree import trace_of_task

MS = 1_000_000
TASK, STEP, OTHER = "a" * 32, "b" * 32, "c" * 32


def span(
    name: str,
    span_id: str,
    parent: str | None = None,
    *,
    trace: str = TASK,
    at_ms: int = 0,
    ms: float = 1,
    service: str = "coordinator",
    error: str | None = None,
    links: tuple[tuple[str, str], ...] = (),
    **attributes: AnyValue,
) -> SpanRecord:
    return SpanRecord(
        trace_id=trace, span_id=span_id, parent_id=parent, name=name, service=service, start_ns=at_ms * MS,
        end_ns=at_ms * MS + round(ms * MS), error=error, links=links,
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
    )  # fmt: skip


MESH = [
    span("send tasks", "01", at_ms=0, ms=3.25, service="cli", rl__task__id="t1"),
    span("process tasks", "02", "01", at_ms=5, rl__task__id="t1"),
    span("dispatch", "03", "02", at_ms=6, rl__task__id="t1", rl__attempt=1, rl__explorer="explorer-0"),
    span("rollout math", "04", "03", at_ms=8, ms=40, service="explorer", error="RuntimeError: [lost]", rl__attempt=1),
    span("dispatch", "05", "02", at_ms=60, rl__task__id="t1", rl__attempt=2, rl__batch__id="batch-1"),
    span("rollout math", "06", "05", at_ms=62, ms=1500, service="explorer", rl__task__id="t1", rl__attempt=2),
    span("text_completion tiny", "07", "06", at_ms=63, ms=1400, service="explorer", gen_ai__usage__output_tokens=12),
    span("send experiences", "08", "06", at_ms=1560, service="explorer", messaging__kafka__offset=17),
    span("train step", "11", trace=STEP, at_ms=2000, ms=700, service="trainer", links=((TASK, "06"),), rl__step=4),
    span("publish version", "12", "11", trace=STEP, at_ms=2600, service="trainer", rl__model__version=4),
    span("announce version", "13", "12", trace=STEP, at_ms=2610),
    span("sync weights", "14", "13", trace=STEP, at_ms=2620, ms=90, service="explorer"),
    span("train step", "21", trace=OTHER, at_ms=3000, service="trainer", links=(("d" * 32, "99"),)),
    span("rollout math", "31", "30", trace=OTHER, at_ms=1, service="explorer", rl__task__id="t2"),
]


def printed(spans: list[SpanRecord], task_id: str) -> str:
    console = Console(width=160, file=io.StringIO(), force_terminal=False, color_system=None)
    console.print(tree_of_task(sorted(spans, key=lambda s: s.start_ns), task_id))
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above


def test_the_way_of_a_task_from_send_to_sync() -> None:
    assert (
        printed(MESH, "t1")
        == f"""\
task t1  trace {TASK}
├── send tasks  cli  +0.0 ms 3.2 ms
│   └── process tasks  coordinator  +5.0 ms 1.0 ms
│       ├── dispatch  coordinator  +6.0 ms 1.0 ms  attempt=1 explorer=explorer-0
│       │   └── rollout math  explorer  +8.0 ms 40.0 ms  attempt=1  error: RuntimeError: [lost]
│       └── dispatch  coordinator  +60.0 ms 1.0 ms  attempt=2 batch.id=batch-1
│           └── rollout math  explorer  +62.0 ms 1.50 s  attempt=2
│               ├── text_completion tiny  explorer  +63.0 ms 1.40 s  output_tokens=12
│               └── send experiences  explorer  +1.56 s 1.0 ms  offset=17
└── train step  trainer  +2.00 s 700.0 ms  step=4  (linked)
    └── publish version  trainer  +2.60 s 1.0 ms  model.version=4
        └── announce version  coordinator  +2.61 s 1.0 ms
            └── sync weights  explorer  +2.62 s 90.0 ms
"""
    )


def test_many_alike_share_a_line_but_errors_do_not() -> None:
    requests = [
        span("text_completion tiny", f"9{i}", "06", at_ms=63 + i, ms=100 * (i + 1), service="explorer")
        for i in range(5)
    ]
    failed = span("text_completion tiny", "99", "06", at_ms=70, service="explorer", error="EngineDeadError: gone")
    text = printed([*MESH, *requests, failed], "t1")
    # The one of the mesh, which took 1.4 s, is the sixth.
    assert "text_completion tiny x 6  explorer" in text
    assert "100.0 ms to 1.40 s" in text
    assert text.count("text_completion tiny") == 2
    assert "error: EngineDeadError: gone" in text


def test_a_lost_parent_is_told() -> None:
    assert (
        printed(MESH, "t2")
        == f"""\
task t2  trace {OTHER}
└── rollout math  explorer  +0.0 ms 1.0 ms  (parent not seen)
"""
    )


def test_tasks_that_share_a_trace_are_kept_apart() -> None:
    spans = [
        span("send a file", "01", service="cli"),
        span("send tasks", "02", "01", at_ms=1, rl__task__id="t1"),
        span("dispatch", "03", "02", at_ms=2),
        span("send tasks", "04", "01", at_ms=3, rl__task__id="t2"),
        span("dispatch", "05", "04", at_ms=4),
        span("send tasks", "06", "03", at_ms=5, rl__task__id="t3"),
        span("train step", "11", trace=STEP, at_ms=9, links=((TASK, "05"),)),
    ]
    found = trace_of_task(spans, "t1")
    (root,) = found.roots
    assert root.span.name == "send a file"
    assert [child.span.span_id for child in root.children] == ["02"]
    assert [child.span.span_id for child in root.children[0].children] == ["03"]
    assert root.children[0].children[0].children == [], "a task that this one sent is another task"
    assert found.linked == [], "the step trained on the other one"
    assert [node.span.span_id for node in trace_of_task(spans, "t2").linked] == ["11"]


def test_a_step_links_to_a_rollout_whose_span_was_lost() -> None:
    spans = [
        span("send tasks", "01", rl__task__id="t1"),
        span("train step", "11", trace=STEP, at_ms=9, links=((TASK, "77"),)),
    ]
    assert [node.span.name for node in trace_of_task(spans, "t1").linked] == ["train step"]


def test_spans_that_are_each_others_parents_end() -> None:
    spans = [span("a", "01", "02", rl__task__id="t1"), span("b", "02", "01")]
    with pytest.raises(TaskNotTracedError, match="no span of task 't9'"):
        trace_of_task(spans, "t9")
    (root,) = trace_of_task(spans, "t1").roots
    assert [child.span.name for child in root.children] == ["b"]
    assert root.children[0].children == []


def test_an_unknown_task_is_an_error_that_names_those_which_are_called_alike() -> None:
    with pytest.raises(TaskNotTracedError) as caught:
        tree_of_task(MESH, "t9")
    assert str(caught.value) == (
        "no span of task 't9' among those of 2 tasks, such as t1, t2; is the task of this run?"
    )
    with pytest.raises(TaskNotTracedError, match=r"there are 0 spans .*--run-dir"):
        tree_of_task([], "t1")
    spans = [span("a", "01", rl__task__id="aaa"), span("b", "02", rl__task__id="copy-1/2")]
    with pytest.raises(TaskNotTracedError, match=r"such as copy-1/2;"):
        tree_of_task(spans, "copy-1")
