"""Tools of a model, Python functions first of all: what the model is told of one, and what becomes of a call.

==========================================  ==========================================================================
a call                                      becomes
==========================================  ==========================================================================
of a tool that there is, as it wants it     what the function returns, as text
that cannot be read, of an unknown tool,    a message to the model that says what is wrong, counted (``errors``)
with arguments that it does not take
whose function raises ``ToolError``         the same
whose function raises anything else         the failure of its run
that takes longer than it may               the failure of its run: ``ToolTimeoutError``
==========================================  ==========================================================================

A parameter whose type is ``RolloutContext`` or ``Sandbox`` is no part of what the model is told: it is the run's own. A
function that is not ``async`` runs in a thread of its own; one that hangs there ends with its runner, which is
replaced. Tools of MCP servers: ``trinity_bus.rollout.mcp_tools``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, get_type_hints

import msgspec
from pydantic import TypeAdapter, ValidationError, validate_call

from schemas.message import FunctionSchema, Tool
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.threads import within
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.sandbox import Sandbox, SandboxError

MAX_RESULT_CHARS = 1 << 18  # of what a tool returns; a model reads no more

type Given = Mapping[type, Any]  # a run's own ``RolloutContext``, and its ``Sandbox`` where a tool wants one
_NOTHING: Final[Given] = MappingProxyType({})


class ToolError(TrinityError, RuntimeError):
    """A tool did not do what was asked of it; the model is told why, and goes on."""


class ToolTimeoutError(TrinityError, TimeoutError):
    pass


class ModelTool(Protocol):
    """A tool as a conversation knows it."""

    name: str
    schema: Tool  # what a model is told of it
    given: Mapping[str, type]  # by parameter, what the workflow gives it

    async def run(self, arguments: Mapping[str, Any], timeout_s: float, given: Given) -> str:
        """Return what the model is told of a call; ToolError says why there is nothing. Else the run fails."""
        ...


def read_by_model(name: str, text: str) -> str:
    """Return what a tool gave; ToolError where it is more than a model reads."""
    if len(text) > MAX_RESULT_CHARS:
        raise ToolError(f"{name} returned {len(text)} characters, at most {MAX_RESULT_CHARS} can be read")
    return text


class PythonTool:
    """A function as a tool, with a type for every parameter (else TypeError). May be ``async``.

    Its name, the first paragraph of its docstring, and a JSON schema of its parameters, from their types, are what a
    model is told of it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        types = get_type_hints(function, include_extras=True)
        self.given: Mapping[str, type] = {
            name: kind for name, of in types.items() if (kind := _given_kind(of)) is not None
        }
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"tool {self.name!r}: parameter {parameter.name!r} cannot be given by its name")
            if parameter.annotation is parameter.empty:
                raise TypeError(f"tool {self.name!r}: parameter {parameter.name!r} needs a type")
        asked = _asked(function, {name: of for name, of in types.items() if name not in self.given})
        self._check = validate_call(asked)
        description = (inspect.getdoc(function) or "").partition("\n\n")[0] or None
        # Pydantic takes functions too, whatever its types say.
        parameters = TypeAdapter[Any](asked).json_schema()  # type: ignore[arg-type]
        self.schema = Tool(function=FunctionSchema(name=self.name, description=description, parameters=parameters))
        self._function = function

    async def run(self, arguments: Mapping[str, Any], timeout_s: float, given: Given = _NOTHING) -> str:
        """Return what it returns, as text; ToolError, ToolTimeoutError, or whatever else it raises."""
        try:
            taken = self._check(**arguments)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ToolError(f"{self.name} does not take these arguments: {problems}") from error
        own = {name: given[kind] for name, kind in self.given.items()}
        late = ToolTimeoutError(f"tool {self.name!r} gave nothing within {timeout_s:g} s")
        value = await within(timeout_s, late, self._function, **taken, **own)
        return read_by_model(self.name, value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _given_kind(of: Any) -> type | None:
    return next((kind for kind in (RolloutContext, Sandbox) if isinstance(of, type) and issubclass(of, kind)), None)


def _asked(function: Callable[..., Any], types: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    # A function of those parameters that have these types; it returns what it was asked with.

    def asked(**arguments: Any) -> dict[str, Any]:
        return arguments

    signature = inspect.signature(function)
    kept = [one.replace(annotation=types[one.name]) for one in signature.parameters.values() if one.name in types]
    asked.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    asked.__annotations__ = dict(types)
    return asked


class Toolbox:
    """The tools of a workflow, each of another name; ValueError where two have the same."""

    def __init__(self, tools: Sequence[ModelTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise ValueError(f"two tools have the same name: {', '.join(sorted(tool.name for tool in tools))}")
        # what a model is told of them, OpenAI's shape
        self.schemas = [tool.schema.model_dump(exclude_none=True) for tool in tools]
        # those that are given a sandbox
        self.sandboxed = frozenset(tool.name for tool in tools if Sandbox in tool.given.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    async def run(self, name: str, arguments: Mapping[str, Any], timeout_s: float, given: Given = _NOTHING) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name!r}; there are {', '.join(sorted(self._tools)) or 'none'}")
        return await tool.run(arguments, timeout_s, given)


MAX_SHOWN: Final = 1 << 14  # Characters of what a program prints, and of what it complains of: the last of them
_PROGRAM: Final = "program.py"


async def sandboxed_python(code: str, box: Sandbox) -> str:
    """Run a Python program without a network, and return what it prints. Files that it writes stay for the next one.

    ToolError: it took too long, or an earlier one has left the folder so that none can be run in it. SandboxError: this
    machine gives no sandbox.
    """
    try:
        await box.write_file(_PROGRAM, code)
    except SandboxError as error:
        raise ToolError(f"the program cannot be written: {error}") from error
    try:
        done = await box.exec(["python3", _PROGRAM])
    except PermissionError as error:
        raise ToolError(f"the working folder cannot be entered: {error.strerror}") from error
    if done.timed_out:
        raise ToolError("the program took too long, and was killed")
    shown = done.stdout[-MAX_SHOWN:]
    if done.returncode == 0:
        return shown
    return f"{shown}\nit ended with status {done.returncode}: {done.stderr[-MAX_SHOWN:]}".lstrip()
