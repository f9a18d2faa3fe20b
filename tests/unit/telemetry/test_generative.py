"""Spans of runs, turns and calls of tools, with and without what was said."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas.task import Task
from tests.support.gateway.rig import rig, say
from tests.support.narrowing import some
from tests.support.spans import recorded_spans
from trinity_bus.rollout.agents import AgentWorkflow, Endpoint
from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
from trinity_bus.rollout.workflows import MathWorkflow
from trinity_bus.telemetry import generative
from trinity_bus.testing import ScriptedEngine, run_workflow

SAID = "abracadabra"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTENT = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.telemetry.generative") as exporter:
        yield exporter


@pytest.fixture
def _content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generative, "CONTENT", generative.ContentRecording(on=True))


def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a == 0:
        raise KeyError(SAID)
    return a + b


def applied(function: str, name: str) -> str:
    """Apply a function to a name."""
    return f"{function}({name})"


class Sums(ToolWorkflow):
    name = "sums"
    tools: ClassVar = (add, applied)

    async def reward(self, task: Task, conversation: Conversation) -> float:
        return 1.0


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def converse(*answers: str) -> None:
    task = Task(task_id="t-1", workflow="sums", prompt=f"{SAID} 3 + 4?")
    await run_workflow(Sums(), task, ScriptedEngine(answers))


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_run_has_its_turns_and_its_calls_and_nothing_that_was_said(spans: InMemorySpanExporter) -> None:
    await converse(call("add", a=3, b=4), call(SAID), "7")
    *parts, run = spans.get_finished_spans()
    assert [one.name for one in parts] == [
        *("chat policy", "execute_tool add", "chat policy", "execute_tool unknown", "chat policy")
    ]
    assert (run.name, run.kind, run.parent) == ("invoke_agent sums", SpanKind.INTERNAL, None)
    assert {some(one.parent).span_id for one in parts} == {some(run.context).span_id}
    assert {attributes_of(one)["gen_ai.conversation.id"] for one in (*parts, run)} == {"t-1/0"}
    assert attributes_of(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "vllm",
        "gen_ai.agent.name": "sums",
        "gen_ai.request.model": "policy",
        "gen_ai.conversation.id": "t-1/0",
    }
    assert attributes_of(parts[0])["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes_of(parts[1])["gen_ai.tool.name"] == "add"
    assert SAID not in "".join(one.to_json() for one in (*parts, run))


async def test_an_error_is_told_by_its_type(spans: InMemorySpanExporter) -> None:
    with pytest.raises(KeyError, match=SAID):
        await converse(call("add", a=0, b=4))
    _, tool, run = spans.get_finished_spans()
    for span in (tool, run):
        assert (span.status.status_code, attributes_of(span)["error.type"]) == (StatusCode.ERROR, "KeyError")
        assert SAID not in span.to_json()


@pytest.mark.usefixtures("_content")
async def test_what_was_said_is_told_on_request(spans: InMemorySpanExporter) -> None:
    await converse(call("add", a=3, b=4), "7")
    first, tool, last, _ = map(attributes_of, spans.get_finished_spans())
    (asked,) = json.loads(first["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": f"{SAID} 3 + 4?"}]}
    (said,) = json.loads(first["gen_ai.output.messages"])
    (part,) = said["parts"]
    assert (part["type"], part["name"], json.loads(part["arguments"])) == ("tool_call", "add", {"a": 3, "b": 4})
    assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"a": 3, "b": 4}
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"made": True, "text": "7"}
    *_, result = json.loads(last["gen_ai.input.messages"])
    assert result["parts"] == [{"type": "tool_call_response", "id": part["id"], "response": "7"}]


@pytest.mark.usefixtures("_content")
async def test_arguments_of_a_tool_are_told_by_their_names_whatever_these_are(spans: InMemorySpanExporter) -> None:
    await converse(call("applied", function="f", name="x"), "done")
    tool = attributes_of(spans.get_finished_spans()[1])
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"function": "f", "name": "x"}
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"made": True, "text": "f(x)"}


@pytest.mark.parametrize("told", [False, True])
async def test_runs_drawn_together_are_told_together_and_only_on_request(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    monkeypatch.setattr(generative, "CONTENT", generative.ContentRecording(on=told))
    task = Task(task_id="t-1", workflow="math", prompt="3 + 4?", answer="7", repeat_times=2)
    await run_workflow(MathWorkflow(), task, ScriptedEngine(["7", "8"]))
    ended = spans.get_finished_spans()
    assert [one.name for one in ended] == ["chat policy"] * told
    for one in ended:
        (asked,) = json.loads(attributes_of(one)["gen_ai.input.messages"])
        assert asked == {"role": "user", "parts": [{"type": "text", "content": "3 + 4?"}]}
        replies = json.loads(attributes_of(one)["gen_ai.output.messages"])
        assert [said["parts"][0]["content"] for said in replies] == ["7", "8"]
        assert attributes_of(one)["gen_ai.response.finish_reasons"] == ("stop", "stop")


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.usefixtures("_content")
@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "user", "content": "x" * 1_000_000}] * 100, id="long"),
        pytest.param([{"role": "user", "content": [{"type": "text", "text": "x"}] * 1_000_000}], id="many parts"),
        pytest.param([{"role": "a", "tool_calls": [{"function": {"name": "n"}}] * 10_000}], id="many calls"),
        pytest.param([{"role": "user", "content": "\ud800"}], id="half a character"),
        pytest.param([{"role": _deep(50_000), "content": _deep(50_000), "tool_calls": _deep(50_000)}], id="deep"),
        pytest.param([{"role": 1, "content": 2, "tool_calls": 3}, {"tool_calls": [1, {"function": 2}]}], id="odd"),
        pytest.param([{"role": "tool", "content": None, "tool_call_id": {1: 2}}, {}], id="empty"),
    ],
)
def test_what_is_told_is_bounded_json(spans: InMemorySpanExporter, messages: list[dict[str, Any]]) -> None:
    with generative.turn_span("half \ud800", "c") as span:
        generative.note_messages(span, messages)
        generative.note_replies(span, messages, ["stop"] * len(messages))
        generative.note_value(span, "gen_ai.tool.call.result", messages)
    (ended,) = spans.get_finished_spans()
    assert ended.name.encode() == b"chat half \\ud800"
    for name in ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.result"):
        text = attributes_of(ended)[name]
        assert text.encode()
        assert len(text) <= generative.MAX_CONTENT + 2
        json.loads(text)


@pytest.mark.usefixtures("_content")
def test_a_text_is_cut_before_it_is_written(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def note(text: str) -> str:
        written.append(text)
        return text

    monkeypatch.setattr(generative, "encodable", note)
    with generative.turn_span("m", "c") as span:
        generative.note_value(span, "gen_ai.tool.call.result", {"a": ["x" * 1_000_000, b"y" * 1_000_000]})
    assert spans.get_finished_spans()
    assert max(map(len, written)) < 3 * generative.MAX_TEXT


class Program(AgentWorkflow):
    name = "program"

    async def act(self, task: Task, model: Endpoint) -> float:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
            await say(client)
        return 1.0


async def test_what_an_agent_asks_over_http_is_a_turn_of_its_run(spans: InMemorySpanExporter) -> None:
    await run_workflow(Program(), Task(task_id="t", workflow="program", prompt="?"), ScriptedEngine(["42"]))
    turn, run = spans.get_finished_spans()
    assert (turn.name, run.name) == ("chat policy", "invoke_agent program")
    assert some(turn.parent).span_id == some(run.context).span_id


async def test_a_session_of_the_gateway_has_its_turns_in_the_clients_trace(spans: InMemorySpanExporter) -> None:
    async with rig() as here, here.client(session="s-1") as client, here.client() as alone:
        await say(client, extra_headers={"traceparent": PARENT})
        stream = await say(client, stream=True)
        assert [chunk async for chunk in stream]
        await alone.completions.create(model="policy", prompt="6*7=")
    first, second, third = spans.get_finished_spans()
    assert [one.name for one in (first, second, third)] == ["chat policy", "chat policy", "text_completion policy"]
    ids = [attributes_of(one).get("gen_ai.conversation.id") for one in (first, second, third)]
    assert ids == ["s-1", "s-1", None]
    assert f"{some(first.parent).span_id:016x}" == PARENT.split("-")[2]
    assert first.kind is SpanKind.CLIENT
    told = here.engines["explorer-0"].parents
    assert [some(one).split("-")[2] for one in told] == [
        f"{some(one.context).span_id:016x}" for one in (first, second, third)
    ]
    assert not any(name in attributes_of(one) for one in (first, second, third) for name in CONTENT)
