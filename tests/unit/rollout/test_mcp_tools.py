"""MCP servers whose tools a model is offered: real ones, made with the package ``mcp``, and one that misbehaves."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas import Task
from tests.support.fakes.http import served_by
from tests.support.mesh.processes import children_with
from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
from trinity_bus.rollout.tools import ToolTimeoutError
from trinity_bus.runtime.ports import free_port
from trinity_bus.testing import ScriptedEngine, run_workflow

pytest.importorskip("mcp", reason="not run: the package mcp is not installed")

from trinity_bus.rollout import mcp_tools
from trinity_bus.rollout.mcp_tools import McpServer, McpServerError

PROGRAM = str(Path(__file__).parents[2] / "support" / "servers" / "mcp_server.py")
REAL = McpServer(name="real", command=[sys.executable, PROGRAM])
# A FAKE server, which starts at once and does what none should.
FAKE = """
import json, os, subprocess, sys, time

def called(name, asked):
    if name == "say":
        return "x" * asked["characters"]
    if name == "end":
        print("no more of this", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "sleep":
        time.sleep(60)
    while name == "flood":
        print(json.dumps({"jsonrpc": "2.0", "id": "i" * 1000, "method": "ping"}), flush=True)
    if name == "leave":
        return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    return " ".join(sorted(os.environ))

print("starting", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params", {})
    answer = {"jsonrpc": "2.0", "id": asked.get("id")}
    if method == "initialize":
        server = {"name": "fake", "version": "1"}
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
    elif method == "tools/list":
        names = ["say", "end", "sleep", "leave", "environment", "fail", "show"]
        names += os.environ.get("MORE", "").split()
        schema = {"type": "object"}
        slow = {**schema, "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
        tools = [{"name": name, "inputSchema": schema, "outputSchema": slow} for name in names]
        answer["result"] = {"tools": tools if not params.get("cursor") else []}
        if "ENDLESS" in os.environ:
            answer["result"]["nextCursor"] = "more"
    elif method == "tools/call" and params["name"] == "refuse":
        answer["error"] = {"code": -32602, "message": "x" * 1_000_000}
    elif method == "tools/call" and params["name"] == "match":
        answer["result"] = {"content": [], "structuredContent": {"a": "a" * 64 + "!"}}
    elif method == "tools/call" and params["name"] == "fail":
        answer["result"] = {"content": [{"type": "text", "text": "not here"}], "isError": True}
    elif method == "tools/call" and params["name"] == "show":
        answer["result"] = {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]}
    elif method == "tools/call":
        text = called(params["name"], params.get("arguments", {}))
        answer["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    if "id" in asked:
        print(json.dumps(answer), flush=True)
"""
PROBE = McpServer(name="probe", command=[sys.executable, "-I", "-S", "-c", FAKE], env={"SHOWN": "1"})


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package takes seconds of a processor to be imported.
    monkeypatch.setattr(mcp_tools, "START_S", 200.0)


class Probing(ToolWorkflow):
    """Rewards an answer that holds the task's."""

    name = "probing"
    max_turns = 8

    def __init__(self, server: McpServer, timeout_s: float = 100.0) -> None:
        self.servers = (server,)  # type: ignore[misc]
        self.tool_timeout_s = timeout_s  # type: ignore[misc]
        super().__init__()

    async def reward(self, task: Task, conversation: Conversation) -> float:
        return float((task.answer or "") in conversation.answer)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def told(workflow: Probing, *calls: str) -> tuple[list[str], Any]:
    """What the model is told of each call, and the rollout."""
    engine = ScriptedEngine([*calls, "7"])
    (rollout,) = await run_workflow(workflow, Task(workflow="probing", prompt="?", answer="7"), engine)
    lines = engine.requests[-1].prompt.splitlines()
    return [line.removeprefix("tool: ") for line in lines if line.startswith("tool: ")], rollout


async def test_a_program_is_asked_as_a_function_is_and_each_run_has_its_own() -> None:
    lines, rollout = await told(Probing(REAL), call("add", a=3, b=4), call("count"), call("count"), call("add", a="x"))
    assert lines[0] == "7"
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"], "one process for the run"
    assert "1 validation error for addArguments" in lines[3]
    assert (rollout.reward, rollout.metrics["tool_calls"], rollout.metrics["tool_errors"]) == (1.0, 4.0, 1.0)
    assert not psutil.pid_exists(int(lines[1].split()[2])), "nothing of it is left when the run is over"


async def test_it_is_told_little_of_the_runners_environment() -> None:
    lines, _ = await told(Probing(PROBE), call("environment"), call("show"))
    assert "SHOWN" in lines[0].split()
    assert not {name for name in lines[0].split() if name.startswith("PYTEST")}
    assert lines[1] == "[image: it cannot be shown here]"


async def test_what_a_server_cannot_do_is_told_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MAX_MESSAGE_BYTES", 1 << 20)
    calls = [call("fail"), call("say", characters=300_000), call("nothing"), call("say", characters=2_000_000)]
    lines, rollout = await told(Probing(PROBE), *calls, call("say", characters=3))
    assert lines[0] == "error: not here"
    assert "say returned 300000 characters, at most 262144 can be read" in lines[1]
    assert "there is no tool 'nothing'; there are end, environment" in lines[2]
    assert "MCP server 'probe' has ended; it is started again. It has sent a message of more than 1048576" in lines[3]
    assert lines[4] == "xxx", "it is there again"
    assert rollout.metrics["tool_errors"] == 4.0


async def test_what_a_hostile_server_says_is_bounded() -> None:
    more = {"MORE": "refuse match flood", "ENDLESS": "1"}
    hostile = McpServer(name="hostile", command=PROBE.command, env=more)
    lines, _ = await told(Probing(hostile), call("refuse"), call("match"), call("flood"), call("say", characters=3))
    assert lines[0].startswith("error: refuse: xxx")
    assert len(lines[0]) < 1000
    assert lines[1].startswith('{"a":"aaa'), "no pattern of the server's has been tried"
    assert "it is started again. It asks without reading what it is told" in lines[2]
    assert lines[3] == "xxx", "its list of tools has ended, too"


async def test_one_that_ends_is_started_again_a_few_times_in_a_run() -> None:
    lines, _ = await told(Probing(PROBE), call("leave"), call("end"), call("say", characters=3))
    assert "it is started again. It has ended with status 3: no more of this" in lines[1]
    assert lines[2] == "xxx"
    assert not psutil.pid_exists(int(lines[0])), "what it had started has ended with it"
    with pytest.raises(McpServerError, match=r"'probe' was started 4 times in this run, and has ended: .* status 3"):
        await told(Probing(PROBE), *[call("end")] * 5)


async def test_one_that_is_late_or_cannot_be_used_fails_its_run_with_the_reason() -> None:
    with pytest.raises(ToolTimeoutError, match=r"tool 'sleep' gave nothing within 0\.2 s"):
        await told(Probing(PROBE, 0.2), call("sleep"))
    assert not children_with(FAKE)
    for server, why in (
        (McpServer(name="none", command=["/no/such/server"]), "'none' cannot be used: .* 127: cannot run /no/such"),
        (McpServer(name="none", url=f"http://127.0.0.1:{free_port()}/mcp"), "'none' cannot be used: ConnectError"),
        (McpServer(name="probe", command=PROBE.command, only=["add"]), "it has no tool 'add'; it has say,"),
    ):
        with pytest.raises(McpServerError, match=why):
            await told(Probing(server), "7")
    for given in ({}, {"command": ["a"], "url": "http://b"}, {"command": "a b"}):
        with pytest.raises(ValueError, match="'x' needs either a command, which is a list, or a url"):
            McpServer(name="x", **given)


async def test_a_server_that_hangs_at_its_start_or_has_too_many_tools_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_tools, "START_S", 0.2)
    with pytest.raises(McpServerError, match=r"'cat' cannot be used: it has listed no tools within 0\.2 s"):
        await told(Probing(McpServer(name="cat", command=["sleep", "600"])), "7")
    monkeypatch.setattr(mcp_tools, "START_S", 200.0)
    monkeypatch.setattr(mcp_tools, "MAX_TOOLS", 3)
    with pytest.raises(McpServerError, match="it has 7 tools, at most 3 can be offered: name some"):
        await told(Probing(PROBE), "7")
    some = McpServer(name="probe", command=PROBE.command, only=["say", "end"])
    engine = ScriptedEngine(["7"])
    await run_workflow(Probing(some), Task(workflow="probing", prompt="?"), engine)
    assert "tools: ['say', 'end']" in engine.requests[0].prompt


async def test_one_at_an_address_is_asked_likewise_and_may_be_gone_for_a_call() -> None:
    async with served_by("mcp_server.py") as (url, process):
        workflow = Probing(McpServer(name="web", url=f"{url}/mcp", headers={"Authorization": "Bearer of-the-test"}))
        first, _ = await told(workflow, call("count"), call("add", a="x"))
        second, _ = await told(workflow, call("count"))
        assert [line.split()[0] for line in (first[0], second[0])] == ["1", "2"], "all runs share the process"
        assert "1 validation error for addArguments" in first[1]
        with pytest.raises(McpServerError, match="'web' cannot be used: ConnectError"):
            await told(workflow, call("add", a=1), call("end", status=1), call("add", a=1))
        assert process.wait(10) == 1
