"""What a workflow is, what it is given, and what it gives back.

States: a workflow has none. One instance serves every task of its kind, several at once on one event loop of a runner,
so it keeps nothing between calls to ``run`` and does not block the loop.

Failures: whatever ``run`` raises is the typed failure of this attempt, and the task is tried again elsewhere. A
workflow raises ``WorkflowError`` for a task that it can never answer, and ``PartialRunsError`` where it has some of the
runs; zero is what a wrong answer earns. One that blocks the loop, or takes the process down, costs the others in its
runner a delay, and fails when it does so again in a runner of its own.

Cancellation: ``run`` is cancelled when its time is up or when the attempt no longer counts. It should let
``CancelledError`` through; when it does not within ``explorer.cancel_grace_s``, its runner is killed.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import msgpack
import msgspec

from schemas.experience import Rollout
from schemas.fields.free_form import check_plain
from schemas.record import BatchType
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.chat import ChatError, Completion, Tokenizer, renderer_for
from trinity_bus.chat.encoding import encoder_of
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.turns import RunTurns
from trinity_bus.sandbox import KeptPlaces, SandboxPlace
from trinity_bus.telemetry.conventions import GEN_AI_TOOL_CALL_ARGUMENTS, GEN_AI_TOOL_CALL_RESULT
from trinity_bus.telemetry.generative import note_messages, note_replies, note_value, tool_span, turn_span

MAX_STATE_BYTES = 4096  # of all values of one run together, as msgpack


class WorkflowError(TrinityError, ValueError):
    """A workflow cannot run this task; the message names the task and what it lacks."""


class PartialRunsError(WorkflowError):
    """Some of the runs were done when one broke off: ``rollouts``, in order; ``error`` is the first one."""

    def __init__(self, rollouts: "Sequence[Rollout]", error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.rollouts = list(rollouts)


class Engine(Protocol):
    """What generates. ``trinity_bus.inference.engine.InferenceEngine`` is the real one."""

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int, traceparent: str | None
    ) -> Sequence[Completion]:
        """Draw ``n`` responses to one prompt, in order."""
        ...


class PoolEngine(Engine, Protocol):
    """The model of another pool: a judge, a teacher. What cannot be had is raised, with its reason."""

    async def chat(self, messages: bytes, sampling: Sampling) -> str:
        """Return the answer to a conversation: messages of OpenAI's shape, as JSON."""

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]: ...


type Pools = Callable[[str], PoolEngine]  # by the pool's name; UnknownPoolError: it is not asked here


class RunState:
    """What a workflow says of itself while it runs, for people: named values; each replaces the one of its name.

    Failures: what is not plain data, or makes the whole too large, is refused, and what was there before stays.
    ``on_first`` is called once, when there is something to be taken for the first time.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self._values: dict[str, Any] = {}
        self._on_first = on_first
        self.changed = False  # there is anything that was not taken

    def set(self, values: dict[str, Any]) -> None:
        """Set some values; ValueError where one is not plain data, or all are larger than ``MAX_STATE_BYTES``."""
        merged = self._values | check_plain(values)
        size = len(msgpack.packb(merged))
        if size > MAX_STATE_BYTES:
            raise ValueError(f"the state of a run would be {size} bytes, at most {MAX_STATE_BYTES} are allowed")
        self._values = merged
        self.changed = True
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            on_first()

    def take(self) -> dict[str, Any]:
        """Return all values; they count as not changed until the next one is set."""
        self.changed = False
        return self._values


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """What a workflow may use while it runs one task."""

    engine: Engine
    tokenizer: Tokenizer
    pools: Pools | None = None  # other models
    model: str = "policy"  # what the model is called that ``engine`` draws with
    task_id: str = ""  # whose rollout this is
    repeat_times: int  # How many runs are asked for: ``run`` returns a rollout of each, in order, or several
    run_id_base: int = 0  # the run id of the first of them
    # the explorer's defaults, overlaid with the task's own wishes by ``generate``
    sampling: Sampling = field(default_factory=Sampling)
    batch_type: BatchType = "train"
    traceparent: str | None = None  # trace context of this rollout, the parent of the engine's own spans
    state: RunState = field(default_factory=RunState)  # what the workflow has said of itself
    # how the engine was asked to draw, each way once
    asked: list[Sampling] = field(default_factory=list)
    requests: Iterator[int] = field(default_factory=itertools.count)  # numbers what is asked of the engine
    turns_of: Callable[[int], RunTurns] | None = None  # the turns of each run; None: none are kept
    turns: RunTurns | None = None  # those of the run that this is the context of
    # Where sandboxes of runs have their files that the next attempt is to find. None: it finds none.
    places: KeptPlaces | None = None

    @property
    def conversation(self) -> str:
        """What a run is called in spans, where this is the context of one."""
        return f"{self.task_id}/{self.run_id_base}"

    def of_run(self, run_id: int) -> "RolloutContext":
        """Return the context of one run, whose requests are numbered by themselves, and whose turns are kept."""
        turns = None if self.turns_of is None else self.turns_of(run_id)
        return dataclasses.replace(self, run_id_base=run_id, requests=itertools.count(), turns=turns)

    async def end_turn(self) -> None:
        """Say that a turn of this run is over: should this explorer die, another goes on from here.

        The workflow is then run again, and is told what completed turns were told, as long as it asks the same. The
        turn is written while the next one goes on, whose end waits for it, as do ``call`` and the end of the run.
        """
        if self.turns is not None:
            await self.turns.complete()

    async def settle(self) -> None:
        """Return when the turns of this run that were ended are durable."""
        if self.turns is not None:
            await self.turns.durable()

    async def call[**P, R](
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call something that is not to be called again when this run is gone on with, such as a tool.

        When this returns, what it returned is durable, and what was drawn before it. A call during which its explorer
        dies may be called once more: whether it had done anything nobody can tell. ``name`` and the arguments tell one
        call from another; JSON has to hold them, and what is returned.
        """

        async def called(*args: P.args, **kwargs: P.kwargs) -> R:
            with tool_span(name, self.conversation) as span:
                note_value(span, GEN_AI_TOOL_CALL_ARGUMENTS, {"args": args, **kwargs} if args else kwargs)
                value = await function(*args, **kwargs)
                note_value(span, GEN_AI_TOOL_CALL_RESULT, value)
            return value

        await self.settle()
        value = await self._call_once(name, called, *args, **kwargs)
        await self.end_turn()
        await self.settle()
        return value

    async def _call_once[**P, R](
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        # Its result is part of the turn under way.
        arguments = [args, kwargs]
        if self.turns is not None and (known := self.turns.result(name, arguments)) is not None:
            return cast("R", known[0])
        value = await function(*args, **kwargs)
        if self.turns is not None:
            self.turns.note_result(name, arguments, value)
        return value

    def sandbox_place(self) -> SandboxPlace:
        """Return where this run's sandbox has its files: as an earlier attempt left them, if that is gone on with."""
        if self.places is None:
            return SandboxPlace.make()
        place = self.places.of_run(self.run_id_base)
        if self.turns is None or not self.turns.resumed:
            place.clear()
        return place

    def set_state(self, **values: Any) -> None:
        """Tell people something in the states of the runners; ValueError where it is no plain data, or too much."""
        self.state.set(values)

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, pool: str, sampling: Sampling | None = None) -> str:
        """Have the model of another pool, one of ``explorer.auxiliary_pools``, answer a conversation, such as a judge.

        ``messages`` have OpenAI's shape; the pool's own tokenizer writes them, and absent fields of ``sampling`` take
        the default of its explorers. Return what it says, without its reasoning. TrinityError: nobody of the pool can
        be asked, or answers in time, or it refuses.
        """
        asked = sampling or Sampling()

        async def ask(pool: str, messages: Sequence[Mapping[str, Any]], _how: dict[str, Any]) -> str:
            with turn_span(pool, self.conversation) as span:
                note_messages(span, messages)
                text = await self._pool(pool).chat(msgspec.json.encode(messages), asked)
                note_replies(span, [{"role": "assistant", "content": text}], ["unknown"])
            return text

        return await self._call_once("chat", ask, pool, messages, asked.model_dump(exclude_none=True))

    async def score(
        self, prompt_token_ids: Sequence[int], response_token_ids: Sequence[int], *, pool: str
    ) -> list[float]:
        """Have the model of another pool say how likely each token of a response is, such as a teacher.

        The two models have the same tokens. Prompt and response are [tokens] of at least one, of tools too; what is
        returned, for ``Rollout.teacher_logprobs``, are [tokens] log-probabilities at temperature 1. It is asked again
        when a run is gone on with. TrinityError: as ``chat``.
        """
        return await self._pool(pool).score([*prompt_token_ids, *response_token_ids], len(prompt_token_ids))

    def _pool(self, pool: str) -> PoolEngine:
        if self.pools is None:
            raise WorkflowError("there are no other pools to ask here")
        return self.pools(pool)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling | None = None,
        n: int = 1,
        *,
        pool: str | None = None,
    ) -> Sequence[Completion]:
        """Draw ``n`` responses to one prompt of token ids, of as many runs, from ``run_id_base`` on.

        Where there is a seed, what is drawn follows from it, the task, the run, and how many requests this context has
        made before: not from the explorer, nor from what else it draws, nor from how the runs of a task are shared out.
        Absent fields of ``sampling`` take the explorer's default. What the model of another ``pool``, one of
        ``explorer.auxiliary_pools``, draws is not the policy's, and the defaults are those of that pool's explorers.
        WorkflowError: the engine gave another number of responses. TrinityError: as ``chat``.
        """
        if pool is not None:
            return await self._draw(self._pool(pool), prompt_token_ids, sampling or Sampling(), n, pool)
        merged = merge_sampling(self.sampling, sampling)
        note_sampling(self.asked, merged)
        if merged.seed is not None:
            own = sampling is not None and sampling.seed is not None
            first = merged.seed if own else request_seed(merged.seed, self.task_id, next(self.requests))
            # The engine adds its place to the seed of each of the n.
            merged = merged.model_copy(update={"seed": first + self.run_id_base})
        return await self._draw(self.engine, prompt_token_ids, merged, n, "")

    async def _draw(
        self, engine: Engine, prompt: Sequence[int], sampling: Sampling, n: int, pool: str
    ) -> Sequence[Completion]:
        # In an earlier attempt; where nothing was, it is drawn and noted.
        known = None if self.turns is None else self.turns.drawn(prompt, sampling, n, pool)
        if known is not None:
            return known
        completions = await engine.generate(prompt, sampling, n, self.traceparent)
        if len(completions) != n:
            raise WorkflowError(f"asked the engine for {n} responses and got {len(completions)}")
        if self.turns is not None:
            self.turns.note_drawn(prompt, sampling, n, completions, pool)
        return completions


@runtime_checkable
class Workflow(Protocol):
    """Turns a task into rollouts."""

    name: str  # its name in the registry and in tasks

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        """Run ``task`` ``ctx.repeat_times`` times; WorkflowError where it lacks something that this workflow needs."""
        ...


def request_seed(seed: int, task_id: str, number: int) -> int:
    """Return the seed of a task's request, by how many came before: another for each, and the same in every process."""
    digest = hashlib.blake2b(f"{seed}/{number}/{task_id}".encode(), digest_size=8).digest()
    # Room for what is added, and no sign.
    return int.from_bytes(digest) >> 2


def merge_sampling(defaults: Sampling, wishes: Sampling | None) -> Sampling:
    """Return the defaults, with every field that ``wishes`` sets put in their place."""
    if wishes is None:
        return defaults
    named = {name: value for name in type(wishes).model_fields if (value := getattr(wishes, name)) is not None}
    return defaults.model_copy(update=named)


class UnknownSamplingError(TrinityError, ValueError):
    pass


def note_sampling(asked: list[Sampling], sampling: Sampling) -> None:
    """Add a way of drawing to those that are known, unless it draws as one of them does."""
    if not any(known is sampling or _distribution(known) == _distribution(sampling) for known in asked):
        asked.append(sampling)


def sampling_of_rest(rollouts: Sequence[Rollout], asked: Sequence[Sampling]) -> Sampling | None:
    """Return how those rollouts were drawn that do not say it; None where there are none, or nothing was drawn.

    A trainer computes log-probabilities at the temperature at which a sample was drawn. What the engine was asked is
    known here; which sample came of which question is not, where a workflow asked in several ways: then each has to say
    it, or it is an UnknownSamplingError.
    """
    if all(one.sampling is not None for one in rollouts) or not asked:
        return None
    if len(asked) > 1:
        told = ", ".join(str(dict(zip(_DISTRIBUTION, _distribution(one), strict=True))) for one in asked)
        raise UnknownSamplingError(
            f"the engine was asked to draw in {len(asked)} ways ({told}): say of each rollout which it was, as in "
            "Rollout(..., sampling=merge_sampling(ctx.sampling, wishes))"
        )
    return asked[0]


_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "altered_by")


def _distribution(sampling: Sampling) -> tuple[Any, ...]:
    return *sampling.softmax, sampling.altered_by


def prompt_messages(task: Task) -> list[dict[str, Any]]:
    """Return what a task asks, as messages of OpenAI's shape; WorkflowError: it has neither prompt nor messages."""
    if task.messages is not None:
        return [message.model_dump(exclude_none=True) for message in task.messages]
    if task.prompt is None:
        raise WorkflowError(f"task {task.task_id!r} needs a prompt or messages")
    return [{"role": "user", "content": task.prompt}]


def prompt_tokens(task: Task, tokenizer: Tokenizer) -> list[int]:
    """Tokenize a task's prompt, once, at the edge.

    ``messages`` go through the model's chat template and end where the assistant is to speak; ``prompt`` is encoded as
    it stands, with the special tokens that the tokenizer adds by itself (a beginning-of-sequence token, for most).
    WorkflowError: the task has neither, both, or what cannot be written; or nothing is left after tokenizing.
    """
    if (task.prompt is None) == (task.messages is None):
        raise WorkflowError(f"task {task.task_id!r} needs exactly one of prompt and messages")
    has = "a prompt" if task.messages is None else "messages"
    try:
        if task.messages is None:
            token_ids = encoder_of(tokenizer).prompt(task.prompt or "")
        else:
            tools = None if task.tools is None else [tool.model_dump(exclude_none=True) for tool in task.tools]
            token_ids = renderer_for(tokenizer).prompt(prompt_messages(task), tools)
    except ChatError as error:
        raise WorkflowError(f"task {task.task_id!r} has {has} but {error}") from error
    if not token_ids:
        raise WorkflowError(f"task {task.task_id!r} has a prompt without a single token")
    return token_ids
