"""OpenAI's chat completions, as requests to a session and what it has said, and completions of a prompt (pure).

Of a request only what an agent has to decide is taken: messages, tools, length, stops, how many. How tokens are drawn
(temperature and its like, and the seed, with which all runs of a group would be one) is the task's and the explorer's
to say, and what a client sends of it is passed over, unless it asks a model that is not trained. What would change the
answer and cannot be had here is refused.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
from pydantic import ValidationError

from schemas.record import Record
from schemas.sampling import Sampling, StructuredOutputs
from trinity_bus.chat.encoding import encoder_of
from trinity_bus.chat.formats import in_reasoning, required_call, without_marks
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer
from trinity_bus.chat.rendering import TemplateOptions, Tools, read_options
from trinity_bus.chat.session import ModelReply
from trinity_bus.errors import TrinityError

MAX_CHOICES: Final = 128
# Commas and brackets of a request, in texts too: each may become an object of a hundred bytes.
MAX_PARTS: Final = 1 << 20
OPTIONS: Final = "chat_template_kwargs"  # as vLLM calls them
_TAKEN: Final = frozenset(
    {"messages", "model", "tools", "max_tokens", "max_completion_tokens", "stop", "n", "stream", "stream_options"}
    | {"logprobs", "response_format", "tool_choice", OPTIONS}
)
_DRAWING: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
)
# Who asks, and hints.
HINTS: Final = frozenset(
    {
        *("user", "safety_identifier", "service_tier", "request_id", "priority"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_salt"),
    }
)
PASSED_OVER: Final = frozenset(
    {
        *_DRAWING,
        *HINTS,
        *("metadata", "store", "parallel_tool_calls", "verbosity", "reasoning_effort"),
        *("prediction", "reasoning", "include_reasoning"),
    }
)
# What is taken with these values only, which are those that vLLM has without them.
_EITHER_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = (
    dict.fromkeys(("echo", "ignore_eos", "include_stop_str_in_output", "use_beam_search"), (False,))
    | dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), (False,))
    | dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "detokenize"), (True,))
    | dict.fromkeys(("best_of", "length_penalty"), (1,))
    | {"logit_bias": ({},), "min_tokens": (0,), "stop_token_ids": ([],), "bad_words": ([],), "vllm_xargs": ({},)}
)
_NEUTRAL: Final = {
    **_EITHER_NEUTRAL,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
    "modalities": (["text"],),
    "top_logprobs": (0,),
}

_COMPLETION_TAKEN: Final = frozenset({"prompt", "model", "max_tokens", "stop", "n", "stream", "stream_options"})
_COMPLETION_NEUTRAL: Final = {**_EITHER_NEUTRAL, "suffix": ("",)}


class UnknownModelError(TrinityError, LookupError):
    """A model that is not served here."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    messages: Sequence[ChatMessage]
    tools: Tools
    sampling: Sampling
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    options: TemplateOptions = field(default_factory=dict)
    # How the client would have it drawn, as it came: for a model that is not trained.
    drawing: Mapping[str, Any] = field(default_factory=dict)
    # Names of tools, one of which is to be called; none: the model may call any, or none.
    required: Sequence[str] = ()
    # Whether the answer is to have reasoning of its own, as Anthropic's have; how much is the model's to say.
    shows_reasoning: bool = False
    # Id of the answer that ``messages`` continue, and what stands before all that was said up to there.
    previous: str | None = None
    opening: Sequence[ChatMessage] = ()
    stored: bool = False  # whether its answer may be continued by its id
    begun: str = ""  # of the answer, what the model is to go on with

    def drawn_after(self, prompt: Sequence[int], tokenizer: Tokenizer) -> Sampling:
        """Return how the answer to a prompt is drawn, as a call where it is to be one; ChatError where it cannot be."""
        if not self.required:
            return self.sampling
        functions = [one for tool in self.tools or () if (one := tool["function"])["name"] in self.required]
        shape = required_call(str(tokenizer.chat_template), functions, opened=in_reasoning(tokenizer, prompt))
        return self.sampling.model_copy(update={"structured_outputs": shape})

    def of_another_model(self) -> Sampling:
        """Return how a model draws that is not trained, whose answer is one text; ChatError for what it has not."""
        not_had = {"tools": self.tools, "n": self.n > 1, "logprobs": self.logprobs, OPTIONS: self.options}
        for name, asked in not_had.items():
            if asked:
                raise ChatError(f"{name} cannot be had of model {self.model!r}")
        return _checked(
            Sampling,
            {
                **self.drawing,
                "max_tokens": self.sampling.max_tokens,
                "stop": self.sampling.stop,
                "structured_outputs": self.sampling.structured_outputs,
            },
        )


def read_request(body: bytes, sampling: Sampling | None) -> ChatRequest:
    """Read a request, with the task's wishes; raises ChatError where it asks for what cannot be had."""
    asked = read_body(body, _TAKEN | PASSED_OVER, _NEUTRAL)
    tools = read_objects(asked, "tools")
    for place, tool in enumerate(tools):
        match tool:
            case {"function": {"name": str()}}:
                pass
            case _:
                raise not_had(f"tools[{place}]", tool)
    required = read_required(asked.get("tool_choice", "auto"), tools)
    if asked.get("tool_choice") == "none":
        tools = []
    if (shape := read_shape(asked.get("response_format"), "response_format", tools)) is not None:
        sampling = (sampling or Sampling()).model_copy(update={"structured_outputs": shape})
    return ChatRequest(
        model=str(asked.get("model", "")),
        messages=read_objects(asked, "messages"),
        tools=tools or None,
        sampling=read_sampling(
            sampling, asked.get("max_completion_tokens", asked.get("max_tokens")), asked.get("stop")
        ),
        n=read_n(asked),
        stream=read_flag(asked, "stream"),
        include_usage=read_include_usage(asked),
        logprobs=read_flag(asked, "logprobs"),
        options=read_options(asked.get(OPTIONS, {})),
        drawing={name: value for name, value in asked.items() if name in _DRAWING},
        required=required,
    )


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    model: str
    prompt: list[int]
    sampling: Sampling
    n: int
    stream: bool
    include_usage: bool


def read_completion_request(body: bytes, sampling: Sampling, tokenizer: Tokenizer) -> CompletionRequest:
    """Read a request to complete a prompt as it stands; raises ChatError where it asks for what cannot be had."""
    asked = read_body(body, _COMPLETION_TAKEN | PASSED_OVER, _COMPLETION_NEUTRAL)
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        token_ids = encoder_of(tokenizer).prompt(prompt)
    elif isinstance(prompt, list) and all(type(one) is int and 0 <= one < 1 << 31 for one in prompt):
        token_ids = prompt
    else:
        raise ChatError("prompt is one text, or one list of token ids")
    if not token_ids:
        raise ChatError("a prompt without a single token")
    return CompletionRequest(
        model=str(asked.get("model", "")),
        prompt=token_ids,
        sampling=read_sampling(sampling, asked.get("max_tokens"), asked.get("stop")),
        n=read_n(asked),
        stream=read_flag(asked, "stream"),
        include_usage=read_include_usage(asked),
    )


def read_required(choice: Any, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    match choice:
        case "auto" | "none":
            return []
        case "required":
            return tool_names(tools)
        case {"type": "function", "function": {"name": str(name)}}:
            return tool_names(tools, name)
    raise not_had("tool_choice", choice)


def tool_names(tools: Sequence[Mapping[str, Any]], wanted: str | None = None) -> list[str]:
    """Return the names of tools, one of which is to be called; ChatError where there is none."""
    names = [name for tool in tools if wanted in (None, name := tool["function"]["name"])]
    if not names:
        raise ChatError("tool_choice requires a call of a tool that is not among the tools", "tool_choice")
    return names


def read_shape(shape: Any, field: str, tools: Sequence[Any]) -> StructuredOutputs | None:
    """Return what an answer is to look like, as OpenAI's or Anthropic's clients say it in ``field``."""
    match shape:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            asked = StructuredOutputs(json_object=True)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} | {
            "type": "json_schema",
            "schema": dict(schema),
        }:
            asked = _checked(StructuredOutputs, {"json_schema": schema})
        case _:
            raise not_had(field, shape)
    if tools:
        raise ChatError(f"{field} cannot be had together with tools: the answer could be no call", field)
    return asked


def read_body(body: bytes, taken: AbstractSet[str], neutral: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a request's fields but null: those ``taken``, and ``neutral`` ones of these values; else ChatError."""
    return read_fields(read_json(body), taken, neutral)


def read_fields(
    given: Any, taken: AbstractSet[str], neutral: Mapping[str, Sequence[Any]], place: str = ""
) -> dict[str, Any]:
    """Return the same of an object, which is at ``place`` of a request."""
    if not isinstance(given, dict):
        raise ChatError(f"{place or 'the request'} is no JSON object", place or None)
    fields = {name: value for name, value in given.items() if value is not None}
    for name, value in fields.items():
        if name in taken:
            continue
        where = f"{place}.{name[:100]}" if place else name[:100]
        if name not in neutral:
            raise ChatError(f"{where} cannot be had here", where)
        if value not in neutral[name]:
            raise not_had(where, value)
    return fields


def not_had(where: str, value: Any) -> ChatError:
    """Return what tells a client that a field of its request cannot have this value."""
    return ChatError(f"{where} {json.dumps(value)[:100]} cannot be had here", where)


def read_json(body: bytes) -> Any:
    """Decode JSON: never of so many parts that they would take a hundred times its memory."""
    check_parts(body)
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ChatError(f"the request is no JSON: {error}") from error


def check_parts(body: bytes) -> None:
    """Raise ChatError for JSON of more parts than a conversation can have."""
    if (parts := sum(map(body.count, (b",", b"[", b"{")))) > MAX_PARTS:
        raise ChatError(f"the request has {parts} commas and brackets; {MAX_PARTS} are the most")


def read_flag(asked: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false, false where it is not there; the text "false" is a ChatError."""
    value = False if asked.get(name) is None else asked[name]
    if not isinstance(value, bool):
        raise ChatError(f"{name} is true or false, not {json.dumps(value)[:100]}", name)
    return value


def read_include_usage(asked: Mapping[str, Any]) -> bool:
    options = asked.get("stream_options", {})
    if not isinstance(options, dict):
        raise ChatError("stream_options is an object")
    return read_flag(options, "include_usage")


def read_sampling(sampling: Sampling | None, max_tokens: Any, stop: Any = None, **more: Any) -> Sampling:
    wished = _checked(Sampling, {"max_tokens": max_tokens, "stop": [stop] if isinstance(stop, str) else stop, **more})
    return (sampling or Sampling()).model_copy(update=wished.model_dump(exclude_none=True))


def _checked[R: Record](kind: type[R], wishes: Mapping[str, Any]) -> R:
    try:
        return kind.model_validate({name: value for name, value in wishes.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ChatError(f"{where}: {first['msg']}", where) from error


def read_n(asked: Mapping[str, Any]) -> int:
    n = asked.get("n", 1)
    if type(n) is not int or not 1 <= n <= MAX_CHOICES:
        raise ChatError(f"n is from 1 to {MAX_CHOICES}")
    return n


def read_objects(asked: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = asked.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ChatError(f"{name} is a list of objects", name)
    return value


def read_text(given: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """Return a text, or that of a list of its parts, which are of these kinds."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise ChatError(f"{where} is a text, or a list of its parts", where)
    texts = []
    for place, part in enumerate(given):
        match part:
            case {"type": str(kind), "text": str(text)} if kind in kinds:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)} if "refusal" in kinds:
                texts.append(text)
            case _:
                raise not_had(f"{where}[{place}]", part)
    return "".join(texts)


type TokenTexts = Sequence[tuple[str, float]] | None  # with the tokens' log-probabilities, where they were asked for
type Choices = Sequence[tuple[ModelReply, TokenTexts]]
type Reasoning = Callable[[], str | None]  # of a choice, as far as it was drawn: whole by the time text is shown


@dataclass(slots=True)
class AnswerShape:
    """An answer, in one piece or in events; ``created`` in seconds since 1970, ``asked`` the request as it was read."""

    id: str
    created: int
    model: str
    prompt_tokens: int
    asked: Any
    # Whether events have their types as names; without, the last of them is ``[DONE]``.
    named: ClassVar[bool] = False
    chunks_are: ClassVar[str] = ""

    def failed(self, message: str, kind: str) -> dict[str, Any]:
        """Return the event of an error amid an answer."""
        return error_body(message, kind)

    def end(self, drawn: int) -> Iterator[dict[str, Any]]:
        """Yield what comes after all choices, which have so many tokens together."""
        if self.asked.include_usage:
            yield self._frame(self.chunks_are, [], drawn)

    def _frame(self, kind: str, choices: Sequence[Any], drawn: int | None = None) -> dict[str, Any]:
        frame = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return frame if drawn is None else {**frame, "usage": usage(self.prompt_tokens, drawn)}


class ConversationShape(AnswerShape, ABC):
    """An answer of a conversation; its events are ``start``, ``more`` and ``last`` of each choice, and ``end``."""

    __slots__ = ()

    @abstractmethod
    def body(self, choices: Choices) -> dict[str, Any]: ...

    @abstractmethod
    def start(self, index: int) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def more(self, index: int, text: str, reasoning: Reasoning) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def last(self, index: int, said: ModelReply, rest: str, tokens: TokenTexts) -> Iterator[dict[str, Any]]:
        """Yield what is left of a choice: the ``rest`` of its text, its tool calls, how it has ended."""


class ChatShape(ConversationShape):
    __slots__ = ()
    chunks_are: ClassVar[str] = "chat.completion.chunk"

    def body(self, choices: Choices) -> dict[str, Any]:
        made = [
            {"index": i, "message": said.message, "logprobs": _logprobs(tokens), "finish_reason": finish_reason(said)}
            for i, (said, tokens) in enumerate(choices)
        ]
        return self._frame("chat.completion", made, sum(said.tokens for said, _ in choices))

    def start(self, index: int) -> Iterator[dict[str, Any]]:
        yield self._chunk(index, {"role": "assistant", "content": ""})

    def more(self, index: int, text: str, reasoning: Reasoning) -> Iterator[dict[str, Any]]:
        del reasoning  # comes with the last chunk, as it always has
        yield self._chunk(index, {"content": text})

    def last(self, index: int, said: ModelReply, rest: str, tokens: TokenTexts) -> Iterator[dict[str, Any]]:
        delta = {**said.message, "content": rest}
        del delta["role"]
        if said.tool_calls:
            delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(delta["tool_calls"])]
        yield self._chunk(index, delta, logprobs=_logprobs(tokens))
        yield self._chunk(index, {}, finish_reason=finish_reason(said))

    def chunks(self, choices: Choices) -> Iterator[dict[str, Any]]:
        for i, (said, tokens) in enumerate(choices):
            yield from self.start(i)
            yield from self.last(i, said, said.content, tokens)
        yield from self.end(sum(said.tokens for said, _ in choices))

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._frame(self.chunks_are, [choice])


class CompletionShape(AnswerShape):
    """Choices are texts, each with why it ended."""

    __slots__ = ()
    chunks_are: ClassVar[str] = "text_completion"

    def body(self, choices: Sequence[tuple[str, str]], drawn: int) -> dict[str, Any]:
        made = [_choice(i, text, reason) for i, (text, reason) in enumerate(choices)]
        return self._frame(self.chunks_are, made, drawn)

    def chunk(self, index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return self._frame(self.chunks_are, [_choice(index, text, finish_reason)])


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def text_of_completion(tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str]) -> str:
    """Return what a completion reads as: without its end, and what ended it."""
    text = tokenizer.decode(without_marks(token_ids, encoder_of(tokenizer).ends))
    for one in stop:
        text = text.partition(one)[0]
    return text


def error_body(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None, "param": param}}


def model_body(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "trinity-bus"}


def models_body(model: str) -> dict[str, Any]:
    return {"object": "list", "data": [model_body(model)]}


def token_texts(tokenizer: Tokenizer, token_ids: Iterable[int], logprobs: Iterable[float]) -> list[tuple[str, float]]:
    return [(tokenizer.decode([token]), logprob) for token, logprob in zip(token_ids, logprobs, strict=True)]


def usage(prompt_tokens: int, drawn: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": drawn, "total_tokens": prompt_tokens + drawn}


def finish_reason(said: ModelReply) -> str:
    """Return why an answer ended, in OpenAI's words."""
    return "tool_calls" if said.tool_calls else said.finish_reason


def _logprobs(tokens: TokenTexts) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in tokens
        ]
    }
