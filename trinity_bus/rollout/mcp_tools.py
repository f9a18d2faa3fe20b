"""Tools of MCP servers, which a workflow's code names: programs that are spoken to over pipes, and addresses.

::

    a run begins --> STARTING --it has listed its tools--> UP --the run ends--> its input is closed, then it is killed
                        |  ^                               | '--it ends, or what it sends is too large--.
                        |  '--the next call-- DOWN <-------'     the model is told why its call has failed
                        '--it ends, or is too late--> the run fails: McpServerError

A run has a process of its own, or a session of its own with the server at an address: no run sees what another has made
of one. Processes that all runs are to share are served at an address. A process is given ``PATH``, ``HOME`` and the
like of the runner's environment, and what its server's ``env`` says.

Failures: a tool that answers with an error, and a call that its server refuses, are told to the model, as is the end of
a server, which is started again for the next call; one that had to be started ``MAX_STARTS`` times in a run fails it.
So does a tool that takes longer than it may. An attempt that goes on after its explorer's death is told what earlier
calls have returned, and has new processes, which know nothing of them.

Limits: ``MAX_MESSAGE_BYTES`` of what a server sends at once, ``MAX_RESULT_CHARS`` of what a model reads of it,
``MAX_TOOLS`` of a server, ``START_S``, and a few answers that it has not read. What is not text for the model is not
checked: the pattern of an output schema may take for ever. Importing this needs the package ``mcp``.
"""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from schemas.message import MAX_TOOLS, FunctionSchema, Tool
from trinity_bus import awake
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.threads import within
from trinity_bus.rollout.tools import Given, ToolError, ToolTimeoutError, read_by_model
from trinity_bus.runtime.execution import STOP_FAMILY, Process, ended, guarded, kill

MAX_MESSAGE_BYTES: Final = 4 << 20
MAX_STARTS: Final = 4  # of a server, in one run
_MAX_LISTED: Final = 1024  # of its tools are looked at
_MAX_PAGES: Final = 16  # likewise of their list
_MAX_UNREAD: Final = 256  # messages that it has not read
START_S: Final = 30.0  # how long it may take until it has listed its tools
_GRACE_S: Final = 0.5  # how long a process may take to end once its input is closed
_STOP_S: Final = 2.0  # the same of all that is to be done at its end, such as ending a session; twice that at most
_SHOWN: Final = 500  # bytes of what a process has complained of, and characters of what a server calls an error

_ENDED: Final = "It has ended"
# Codes with which the client itself says that there is no server any more, or none that knows the session.
_GONE: Final = (CONNECTION_CLOSED, INVALID_REQUEST)


class McpServerError(TrinityError, RuntimeError):
    """An MCP server cannot be used; the message names it, and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server whose tools a workflow's model is offered: a program, by its ``command``, or what answers at a ``url``.

    ``only`` names those of its tools that are offered; all of them where it names none.
    """

    name: str  # in errors
    command: Sequence[str] = ()  # program and arguments; no shell is involved
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""  # of streamable HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    only: Sequence[str] = ()

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url) or isinstance(self.command, str):
            raise ValueError(f"MCP server {self.name!r} needs either a command, which is a list, or a url")

    @asynccontextmanager
    async def started(self) -> AsyncIterator[list["McpTool"]]:
        """Provide its tools to one run; McpServerError where they cannot be had."""
        connection = _Connection(self)
        try:
            up = await connection.up()
            yield [McpTool(tool, connection) for tool in up.tools]
        finally:
            await connection.stop()


class McpTool:
    """A tool of a server, in one run."""

    given: Mapping[str, type] = {}

    def __init__(self, schema: Tool, connection: "_Connection") -> None:
        self.schema = schema
        self.name = schema.function.name
        self._connection = connection

    async def run(self, arguments: Mapping[str, Any], timeout_s: float, given: Given) -> str:
        """Return what the server says; see ``ModelTool.run``. McpServerError where it cannot be started again."""
        del given
        up = await self._connection.up()
        late = ToolTimeoutError(f"tool {self.name!r} gave nothing within {timeout_s:g} s")
        result: CallToolResult = await within(timeout_s, late, self._connection.call, up, self.name, dict(arguments))
        text = "\n".join(_text(block) for block in result.content)
        if not result.content and result.structured_content is not None:
            text = msgspec.json.encode(result.structured_content).decode()
        if result.is_error:
            raise ToolError(read_by_model(self.name, text))
        return read_by_model(self.name, text)


def _text(block: ContentBlock) -> str:
    match block:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ResourceLink():
            return str(block.uri)
        case _:
            return f"[{block.type}: it cannot be shown here]"


@dataclass(frozen=True, slots=True)
class _Up:
    client: Client
    tools: list[Tool]
    life: asyncio.Task[None]


class _Connection:
    # With a server, for one run, one call after the other. Each life of it has a task of its own, which alone enters
    # and leaves the client: the client's scopes belong to the task that has entered them.

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._starts = 0
        self._life: asyncio.Task[None] | None = None
        self._up: _Up | None = None
        self._reason = ""  # why it has ended

    async def up(self) -> _Up:
        """Return it as it is, started where it is down."""
        if self._up is not None:
            return self._up
        if self._starts == MAX_STARTS:
            raise McpServerError(f"{self} was started {MAX_STARTS} times in this run, and has ended: {self._reason}")
        self._starts += 1
        self._reason = ""
        ready: asyncio.Future[tuple[Client, list[Tool]]] = asyncio.get_running_loop().create_future()
        life = self._life = asyncio.create_task(self._live(ready))
        either: list[asyncio.Future[Any]] = [ready, life]
        await awake.wait(either, START_S, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            late = "" if life.done() else f"it has listed no tools within {START_S:g} s"
            await self.stop()
            raise McpServerError(f"{self} cannot be used: {late or self._reason}")
        self._up = _Up(*ready.result(), life)
        return self._up

    async def call(self, up: _Up, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Return what a tool says. ToolError: there is nothing, or its server has ended."""
        calling = asyncio.ensure_future(up.client.call_tool(name, arguments))
        either: list[asyncio.Future[Any]] = [calling, up.life]
        reason = ""
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return calling.result()
        # The client raises RuntimeError for what it cannot go on with, such as too many questions of the server.
        except (MCPError, RuntimeError, ValidationError) as error:
            if not (isinstance(error, MCPError) and error.code in _GONE):
                raise ToolError(f"{name}: {str(error)[:_SHOWN]}") from error
            reason = str(error)[:_SHOWN]
        finally:
            calling.cancel()
        await self.stop()
        self._reason = self._reason or reason
        raise ToolError(f"{name} gave nothing, because {self} has ended; it is started again. {self._reason}")

    async def stop(self) -> None:
        life, self._life, self._up = self._life, None, None
        for _ in range(2):
            # The second time, what it does at its end takes too long.
            if life is not None and not life.done():
                life.cancel()
                await awake.wait({life}, _STOP_S)

    async def _live(self, ready: asyncio.Future[tuple[Client, list[Tool]]]) -> None:
        try:
            async with Client(self._address() if self._server.url else self._program()) as client:
                client.session.validate_tool_result = _take  # type: ignore[method-assign]
                ready.set_result((client, await self._listed(client)))
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 (whatever ends it, those who use it are told)
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            self._reason = self._reason or f"{type(cause).__name__}: {cause}"[:_SHOWN]

    async def _listed(self, client: Client) -> list[Tool]:
        listed = await client.list_tools()
        found = list(listed.tools)
        for _ in range(1, _MAX_PAGES):
            if listed.next_cursor is None or len(found) >= _MAX_LISTED:
                break
            listed = await client.list_tools(cursor=listed.next_cursor)
            found += listed.tools
        wanted = self._server.only or [tool.name for tool in found]
        by_name = {tool.name: tool for tool in found}
        if lacking := [name for name in wanted if name not in by_name]:
            raise McpServerError(f"it has no tool {lacking[0]!r}; it has {', '.join(by_name) or 'none'}")
        if len(wanted) > MAX_TOOLS:
            raise McpServerError(f"it has {len(wanted)} tools, at most {MAX_TOOLS} can be offered: name some (only)")
        offered = [by_name[name] for name in wanted]
        return [
            Tool(function=FunctionSchema(name=one.name, description=one.description, parameters=one.input_schema))
            for one in offered
        ]

    @asynccontextmanager
    async def _address(self) -> AsyncIterator[Any]:
        headers = {"Accept-Encoding": "identity", **self._server.headers}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=None, event_hooks={"response": [_bound]}) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _program(self) -> AsyncIterator[Any]:
        # Not by the client's own means, which keep lines of any length, and kill nothing that has got away.
        complaints = bytearray()
        async with guarded(self._server.command) as (command, descriptors):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={**get_default_environment(), **self._server.env},
                pass_fds=descriptors,
                start_new_session=True,
                limit=MAX_MESSAGE_BYTES,
            )
            listening = asyncio.create_task(_read_to_end(process.stderr, complaints))
            pipes = _Pipes(process)
            try:
                yield pipes, pipes
            finally:
                # Why it has ended by itself, where it has.
                over = pipes.over
                # A process whose output nobody reads to its end cannot be waited for.
                rest = asyncio.create_task(_read_to_end(process.stdout, bytearray()))
                status = await pipes.end()
                await awake.wait({rest, listening}, _GRACE_S)
                rest.cancel()
                listening.cancel()
                said = complaints.decode(errors="replace").strip()
                self._reason = f"It has ended with status {status}: {said}" if over == _ENDED else over

    def __str__(self) -> str:
        return f"MCP server {self._server.name!r}"


async def _take(name: str, result: CallToolResult) -> None:
    del name, result


class _Pipes:
    # A process, as both streams of a client: a message is a line.

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None  # noqa: S101 - for types
        assert process.stdout is not None  # noqa: S101 - likewise
        self._process = process
        self._input, self._output = process.stdin, process.stdout
        self._unread = 0
        self.over = ""  # why nothing more can be read

    async def send(self, message: SessionMessage) -> None:
        if self._unread >= _MAX_UNREAD or self._input.transport.get_write_buffer_size() > MAX_MESSAGE_BYTES:
            self.over = self.over or "It asks without reading what it is told"
            kill(self._process, STOP_FAMILY)
            raise anyio.BrokenResourceError
        self._input.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        self._unread += 1
        try:
            await self._input.drain()
        except ConnectionError as error:
            raise anyio.BrokenResourceError from error
        finally:
            self._unread -= 1

    async def __anext__(self) -> SessionMessage | Exception:
        if self.over:
            raise StopAsyncIteration
        try:
            line = await self._output.readline()
        except ValueError:
            self.over = f"It has sent a message of more than {MAX_MESSAGE_BYTES} bytes"
            raise StopAsyncIteration from None
        if not line:
            self.over = self.over or _ENDED
            raise StopAsyncIteration
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            # A server that prints something else may go on.
            return error

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def end(self) -> int:
        """Have the process end, or killed, and return its status."""
        self._input.close()
        try:
            async with awake.timeout(_GRACE_S):
                return await self._process.wait()
        except TimeoutError:
            return await ended(self._process, STOP_FAMILY)


async def _read_to_end(stream: asyncio.StreamReader | None, last: bytearray) -> None:
    while stream is not None and (piece := await stream.read(1 << 16)):
        last += piece
        del last[:-_SHOWN]


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError(f"a response of more than {MAX_MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    if "Content-Encoding" in response.headers:
        raise McpServerError("it compresses what it was asked for as it is")
    response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
