"""Bases for workflows in which a model speaks, is answered, and speaks again: by tools, or by anything else.

::

    the task's messages --> the model --said--> nothing to answer: the end --> reward --> the samples of the run
                               ^                  |
                               |                  '--the other side: each tool, one after the other; a game; ...
                               '-- end_turn <-- turn reward <-- its answers, and what was wrong with calls --'

The conversation also ends where the model was cut at a limit, and after ``max_turns`` of its turns. Tokens are never
made again from text (``trinity_bus.chat``); completed turns outlive the explorer (``RolloutContext.end_turn``), and so
does each call of a tool (``RolloutContext.call``).

Failures: see ``trinity_bus.rollout.tools``. A run that fails has no reward.

``Filling`` keeps which calls have filled a run's sandbox, for an attempt that continues the run.

::

    the sandbox of an attempt before --all its calls are durable-----------------> kept
                                     '--one is not, or was under way at the end--> emptied: nobody is told of that one
    a call of a completed turn --the sandbox holds it--> nothing is done
                               '--it holds less-------> the call is made again, into it
                               '--it holds other calls-> it is emptied, and all calls up to this are made again
    a call that is new --begin--> noted as under way --made--> noted in the sandbox's place, then durable

So on the machine of the attempt before, nothing that was durable is called again, unless the sandbox holds more than
that; on another, where the sandbox is empty, the calls are made in their order. Of a call whose process died during it,
or before it was durable, the sandbox keeps nothing.
"""

import dataclasses
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.chat import ChatError, ModelReply, Session, renderer_for
from trinity_bus.chat.formats import ParsedCall
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.tools import Given, PythonTool, Toolbox, ToolError
from trinity_bus.rollout.turns import question_of_call
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, prompt_messages
from trinity_bus.sandbox import Sandbox, SandboxPlace
from trinity_bus.telemetry.generative import note_messages, note_replies, turn_span

if TYPE_CHECKING:
    from trinity_bus.rollout.mcp_tools import McpServer

type Made = tuple[str, Mapping[str, Any]]  # a tool's name, and its arguments
_UNKNOWN: Final = "unknown"
_UNDER_WAY: Final = "-"  # noted in the place of the digest of a call that has not ended


class Filling:
    """What a run's calls have made of its sandbox, whose place is emptied here where it holds what is not durable.

    ``durable``: the calls that earlier attempts have completed, by :func:`digest_of`, and how often.
    """

    def __init__(self, place: SandboxPlace, durable: Mapping[str, int]) -> None:
        self._place = place
        self._held = place.calls()
        self._made: list[Made] = []
        self._digests: list[str] = []
        if Counter(self._held) - Counter(durable):
            self._empty()

    def begin(self) -> None:
        self._place.note_calls([*self._digests, _UNDER_WAY])

    def note(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._add(name, arguments)
        self._place.note_calls(self._digests)
        self._held = list(self._digests)

    def missing(self, name: str, arguments: Mapping[str, Any]) -> list[Made]:
        """Return what is to be made, and noted, again, so that the sandbox is as after a call of an earlier attempt."""
        at = len(self._digests)
        if self._held[at : at + 1] == [digest_of(name, arguments)]:
            self._add(name, arguments)
            return []
        again = [(name, arguments)]
        if len(self._held) > at:
            again = [*self._made, *again]
            self._made, self._digests = [], []
            self._empty()
        return again

    def _empty(self) -> None:
        # Whoever finds it half emptied is to begin again.
        self._place.note_calls([_UNDER_WAY])
        self._place.clear()
        self._held = []

    def _add(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._made.append((name, arguments))
        self._digests.append(digest_of(name, arguments))


def digest_of(name: str, arguments: Mapping[str, Any]) -> str:
    # As `RolloutContext.call` has it: arguments by place, and by name.
    return question_of_call(name, [[], arguments])


@dataclass(slots=True)
class Conversation:
    """What was said in one run."""

    messages: list[dict[str, Any]]  # all of them, OpenAI's shape, the last turn of the model included
    run_id: int
    tools: Sequence[dict[str, Any]] = ()  # what the model is told that it may call, OpenAI's shape
    turns: list[ModelReply] = field(default_factory=list)  # what the model said, turn by turn
    # The same as it was written: with reasoning and calls, without special tokens
    texts: list[str] = field(default_factory=list)
    calls: int = 0  # of tools, that were made
    errors: int = 0  # calls that could not be read or made, or whose tool said that it could not
    truncated: bool = False  # the model was cut at a limit, or would have gone on
    rewards: list[float] = field(default_factory=list)  # what the other side has given, where it gives some
    # of the run: what a reward asks other pools with
    ctx: RolloutContext | None = field(default=None, repr=False, compare=False)
    # of the run, where a tool wants one: it is there until the reward is known
    sandbox: Sandbox | None = field(default=None, repr=False, compare=False)
    # What a reward has to tell beside itself; ``Answered(..., metrics=conversation.metrics)`` tells of its parts
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """What the model said last, without its reasoning."""
        return self.turns[-1].content if self.turns else ""


# Answers a turn of the model, by adding messages to the conversation. Returns whether that is over.
type OtherSide = Callable[[ModelReply], Awaitable[bool]]


class ConversationWorkflow(SingleRunWorkflow):
    """A conversation of a model and another side. Register the subclass."""

    max_turns: ClassVar[int] = 16  # of the model, in one run

    @abstractmethod
    def other_side(
        self, task: Task, ctx: RolloutContext, conversation: Conversation
    ) -> AbstractAsyncContextManager[OtherSide]:
        """Provide who answers the model, for one run.

        It may say something first, in ``conversation.messages``, and offer ``conversation.tools``.
        """

    def opening(self, task: Task) -> list[dict[str, Any]]:
        return prompt_messages(task)

    @abstractmethod
    async def reward(self, task: Task, conversation: Conversation) -> float:
        """Return what a conversation that has ended was worth."""

    async def turn_reward(self, task: Task, conversation: Conversation) -> float | None:
        """Return what the model's last turn was worth, once it was answered; None: nothing by itself."""
        del task, conversation
        return None

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:
        conversation = Conversation(self.opening(task), run_id, ctx=ctx)
        session = Session(renderer_for(ctx.tokenizer))
        values: list[list[float]] = []
        async with self.other_side(task, ctx, conversation) as answer:
            while True:
                said = await self._turn(task, ctx, session, conversation)
                over = said.finish_reason == "length" or await answer(said)
                value = await self.turn_reward(task, conversation)
                if len(values) < len(session.samples):
                    values.append([])
                values[-1].append(math.nan if value is None else value)
                await ctx.end_turn()
                if over or len(conversation.turns) == self.max_turns:
                    conversation.truncated = conversation.truncated or not over or said.finish_reason == "length"
                    break
            reward = await self.reward(task, conversation)
        metrics = {
            **conversation.metrics,
            "reward": reward,
            "exact": float(reward == 1.0),
            "turns": float(len(conversation.turns)),
            "tool_calls": float(conversation.calls),
            "tool_errors": float(conversation.errors),
            "truncated": float(conversation.truncated),
            "rewrites": float(session.rewrites),
            "response_tokens": float(sum(said.tokens for said in conversation.turns)),
        }
        told = any(not math.isnan(value) for of in values for value in of)
        return [
            dataclasses.replace(sample.rollout(reward=reward, metrics=metrics), turn_rewards=of if told else None)
            for sample, of in zip(session.samples, values, strict=True)
        ]

    async def _turn(self, task: Task, ctx: RolloutContext, session: Session, conversation: Conversation) -> ModelReply:
        try:
            prompt = session.prompt(conversation.messages, conversation.tools or None)
        except ChatError as error:
            raise WorkflowError(f"task {task.task_id!r} cannot be written as tokens: {error}") from error
        with turn_span(ctx.model, ctx.conversation) as span:
            note_messages(span, conversation.messages)
            (completion,) = await ctx.generate(prompt.token_ids, task.sampling)
            stop = (task.sampling.stop if task.sampling is not None else None) or ctx.sampling.stop or ()
            said = session.add(prompt, completion, stop)
            note_replies(span, [said.message], [said.finish_reason])
        conversation.turns.append(said)
        conversation.texts.append(ctx.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
        conversation.messages.append(said.message)
        return said


class ToolWorkflow(ConversationWorkflow):
    """A conversation with tools. Register the subclass, with its ``tools`` and its ``reward``."""

    # Python functions; their names, docstrings and types are what the model is told of them
    tools: ClassVar[Sequence[Callable[..., Any]]] = ()
    servers: ClassVar[Sequence["McpServer"]] = ()  # whose tools the model is offered beside these
    tool_timeout_s: ClassVar[float] = 30.0  # of one call

    def __init__(self) -> None:
        self._functions = [PythonTool(function) for function in self.tools]
        # Names that two of them have are found here, and not in a run.
        Toolbox(self._functions)

    def make_sandbox(self, task: Task) -> Sandbox:
        del task
        return Sandbox()

    @asynccontextmanager
    async def other_side(self, task: Task, ctx: RolloutContext, conversation: Conversation) -> AsyncIterator[OtherSide]:

        async def answer(said: ModelReply) -> bool:
            await _answer_calls(ctx, conversation, said, calling)
            return not (said.tool_calls or said.flaws)

        async with AsyncExitStack() as stack:
            served = [tool for server in self.servers for tool in await stack.enter_async_context(server.started())]
            toolbox = Toolbox([*self._functions, *served])
            conversation.tools = toolbox.schemas
            filling: Filling | None = None
            if toolbox.sandboxed:
                conversation.sandbox = self.make_sandbox(task)
                place = ctx.sandbox_place()
                conversation.sandbox.take(place)
                await stack.enter_async_context(conversation.sandbox)
                filling = Filling(place, ctx.turns.answered if ctx.turns is not None else {})
            given: Given = {RolloutContext: ctx, Sandbox: conversation.sandbox}
            calling = _Calling(toolbox, self.tool_timeout_s, given, filling)
            yield answer


@dataclass(frozen=True, slots=True)
class _Calling:
    # What a run's calls are made with.
    toolbox: Toolbox
    timeout_s: float  # of each
    given: Given
    filling: Filling | None

    def fills(self, name: str) -> Filling | None:
        return self.filling if name in self.toolbox.sandboxed else None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # Returns whether it could be made, and what the model is told of it.
        if (fills := self.fills(name)) is not None:
            fills.begin()
        try:
            told = {"made": True, "text": await self.toolbox.run(name, arguments, self.timeout_s, self.given)}
        except ToolError as error:
            told = {"made": False, "text": f"error: {error}"}
        if fills is not None:
            fills.note(name, arguments)
        return told


async def _answer_calls(ctx: RolloutContext, conversation: Conversation, said: ModelReply, calling: _Calling) -> None:
    for call in said.tool_calls:
        told = await _called(ctx, call, calling)
        conversation.calls += 1
        conversation.errors += not told["made"]
        answered = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": told["text"]}
        conversation.messages.append(answered)
    for flaw in said.flaws:
        conversation.errors += 1
        conversation.messages.append({"role": "tool", "content": flaw})


async def _called(ctx: RolloutContext, call: ParsedCall, calling: _Calling) -> dict[str, Any]:
    is_new = False

    async def called(**arguments: Any) -> dict[str, Any]:
        nonlocal is_new
        is_new = True
        return await calling.call(call.name, arguments)

    # What a model calls that there is not is its own text, which is no name of a span.
    name = call.name if call.name in calling.toolbox else _UNKNOWN
    told = await ctx.call(name, called, **call.arguments)
    if not is_new and (fills := calling.fills(call.name)) is not None:
        # An earlier attempt has called it, and the model is told the same; its sandbox may have been another.
        for missing, arguments in fills.missing(call.name, call.arguments):
            await calling.call(missing, arguments)
    return told
