"""Testing of users' workflows with a FAKE engine, whose answers are a list or a function. No model, broker or GPU.

::

    test --task--> run_workflow --> workflow --prompt--> ScriptedEngine --the next answer--> workflow
      ^                                                                                         |
      '--rollouts, checked as an explorer checks them <-----------------------------------------'

``run_workflow`` runs a workflow as an explorer would, and refuses what an explorer would refuse. An engine that has no
answer left raises :class:`OutOfAnswersError`; nothing is ever made up.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from schemas import Dispatch, Sampling, Task
from schemas.errors import shown
from schemas.experience import Rollout
from schemas.groups.trainable import Bounds, flaws
from trinity_bus.chat import Completion, Tokenizer
from trinity_bus.errors import TrinityError
from trinity_bus.inference.errors import UnknownPoolError
from trinity_bus.rollout.answer import decode_answer, encode_answer
from trinity_bus.rollout.workflow import Engine, Pools, RolloutContext, Workflow, WorkflowError

LOGPROB: Final = -1.0  # of every token
END: Final = 0  # the token that ends an answer
_BOUNDS = Bounds(vocabulary=0x110000, positions=1 << 20)
_NAME: Final = "scripted"


class OutOfAnswersError(TrinityError, LookupError):
    """The engine was asked more often than its test has answers for."""


class CharacterTokenizer:
    """A token per character, its code point; :data:`END` ends a sequence.

    Its chat template is a line per message, with tool calls as Hermes writes them.
    """

    chat_template: Any = "role: content<tool_call>call</tool_call>"
    all_special_ids: Sequence[int] = (END,)
    eos_token_id: int | None = END

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; it adds no special tokens."""
        del add_special_tokens
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        return "".join(chr(token) for token in token_ids if token != END or not skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **options: Any,
    ) -> Any:
        """Token ids of a conversation; its text where ``tokenize`` is False."""
        del return_dict, options
        lines = [f"tools: {[tool['function']['name'] for tool in tools]}\n"] if tools else []
        lines += [_line(message) for message in conversation]
        text = "".join(lines) + ("assistant: " if add_generation_prompt else "")
        return self.encode(text) if tokenize else text


def _line(message: Mapping[str, Any]) -> str:
    calls = "".join(
        f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls") or ()
    )
    return f"{message['role']}: {message['content']}{calls}\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What a workflow has asked of the engine."""

    prompt: str
    sampling: Sampling
    n: int


@dataclass(slots=True)
class ScriptedEngine:
    """Gives the next of its answers for each response that is asked for.

    Args:
        answers: In the order in which they are given; or what makes one of a prompt.
        version: Of the model, that all tokens are said to be drawn with.
        tokenizer: That of a model, for tests of what it is prompted with.
    """

    answers: Iterable[str] | Callable[[str], str]
    version: int = 0
    tokenizer: Tokenizer = field(default_factory=CharacterTokenizer)
    requests: list[Request] = field(default_factory=list, init=False)
    """All of them, in order."""
    _next: Callable[[str], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._next = self.answers if callable(self.answers) else _in_order(self.answers)

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int, traceparent: str | None
    ) -> Sequence[Completion]:
        """See ``Engine.generate``. An answer longer than ``sampling.max_tokens`` is cut there, as a model's is."""
        del traceparent
        prompt = self.tokenizer.decode(prompt_token_ids)
        self.requests.append(Request(prompt, sampling, n))
        return [self._answer(self._next(prompt), sampling.max_tokens) for _ in range(n)]

    async def chat(self, messages: bytes, sampling: Sampling) -> str:
        """Return the next answer, to a conversation."""
        prompt = self.tokenizer.apply_chat_template(
            json.loads(messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        (said,) = await self.generate(prompt, sampling, 1, None)
        return self.tokenizer.decode(said.token_ids, skip_special_tokens=True)

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        """Return :data:`LOGPROB` for every token."""
        return [LOGPROB] * (len(token_ids) - start)

    def _answer(self, text: str, limit: int | None) -> Completion:
        end = self.tokenizer.eos_token_id
        whole = [*self.tokenizer.encode(text, add_special_tokens=False), *([] if end is None else [end])]
        tokens = whole[:limit]
        reason = "stop" if len(tokens) == len(whole) else "length"
        return Completion(tokens, [LOGPROB] * len(tokens), reason, [(0, self.version)])


def _pools(engines: Mapping[str, ScriptedEngine]) -> Pools:
    def named(pool: str) -> ScriptedEngine:
        if pool not in engines:
            raise UnknownPoolError(f"pool {pool!r} is not asked here; there are {', '.join(engines) or 'none'}")
        return engines[pool]

    return named


def _in_order(answers: Iterable[str]) -> Callable[[str], str]:
    rest = iter(answers)

    def following(prompt: str) -> str:
        for answer in rest:
            return answer
        raise OutOfAnswersError(f"no answer is left for {shown(prompt)}")

    return following


class TokenizingEngine(Engine, Protocol):
    """An engine that has its model's tokenizer at hand."""

    tokenizer: Tokenizer


async def run_workflow(
    workflow: Workflow, task: Task, engine: TokenizingEngine, pools: Mapping[str, ScriptedEngine] | None = None
) -> list[Rollout]:
    """Run a task as an explorer would.

    Args:
        workflow: Need not be registered.
        task: With ``repeat_times`` runs; one, where it names no number.
        engine: Answers the workflow; a ``ScriptedEngine`` says what it is told to.
        pools: Answer what it asks of other pools, by their names.

    Raises:
        WorkflowError: The workflow cannot run the task, gave another number of runs or too many metrics, or a sample
            that no model can be trained on.
        SchemaError: A rollout's tokens, logprobs and mask differ in length.
        UnknownSamplingError: It has asked the engine in several ways, and does not say which rollout was drawn how.
        Exception: Whatever the workflow raises.
    """
    runs = task.repeat_times or 1
    context = RolloutContext(
        engine=engine,
        tokenizer=engine.tokenizer,
        pools=_pools(pools or {}),
        task_id=task.task_id,
        repeat_times=runs,
        batch_type=task.batch_type,
    )
    rollouts = await workflow.run(task, context)
    order = Dispatch(
        task=task,
        attempt=1,
        batch_id=task.batch_id or _NAME,
        batch_type=task.batch_type,
        explorer=_NAME,
        incarnation=_NAME,
        repeat_times=runs,
        timeout_s=task.timeout_s or 60.0,
    )
    group = decode_answer(order, encode_answer(order, rollouts, _NAME, asked=context.asked), _NAME)
    if found := flaws(group, _BOUNDS):
        raise WorkflowError(f"run {found[0].sample} cannot be trained on: {found[0].detail}")
    given = len(set(group.run_ids.tolist()))
    if given != runs:
        raise WorkflowError(f"the workflow gave {given} of {runs} runs: it raises PartialRunsError where some broke")
    return rollouts
