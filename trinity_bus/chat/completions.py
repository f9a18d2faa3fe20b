"""OpenAI's completions of a prompt, as it stands (pure). What is taken, passed over and refused is as for chats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.sampling import Sampling
from trinity_bus.chat.encoding import encoder_of
from trinity_bus.chat.messages import ChatError, Tokenizer
from trinity_bus.chat.openai import (
    PASSED_OVER,
    read_body,
    read_flag,
    read_include_usage,
    read_n,
    read_sampling,
    usage,
)

_TAKEN: Final = frozenset({"prompt", "model", "max_tokens", "stop", "n", "stream", "stream_options"})
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {"best_of": (1,), "echo": (False,), "logit_bias": ({},), "suffix": ("",)}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    model: str
    prompt: list[int]
    sampling: Sampling
    n: int
    stream: bool
    include_usage: bool


def read_completion_request(body: bytes, sampling: Sampling, tokenizer: Tokenizer) -> CompletionRequest:
    """Read a request; raises ChatError where it asks for what cannot be had."""
    asked = read_body(body, _TAKEN | PASSED_OVER, _NEUTRAL)
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


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """An answer, in one piece or in chunks; ``created`` in seconds since 1970."""

    id: str
    created: int
    model: str
    prompt_tokens: int

    def body(self, choices: Sequence[tuple[str, str]], drawn: int) -> dict[str, Any]:
        told = [_choice(i, text, reason) for i, (text, reason) in enumerate(choices)]
        return {**self._frame(), "choices": told, "usage": usage(self.prompt_tokens, drawn)}

    def chunk(self, index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return {**self._frame(), "choices": [_choice(index, text, finish_reason)]}

    def usage(self, drawn: int) -> dict[str, Any]:
        return {**self._frame(), "choices": [], "usage": usage(self.prompt_tokens, drawn)}

    def _frame(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


def text_of_completion(tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str]) -> str:
    """Return what a completion reads as: without its end, and what ended it."""
    special = frozenset(tokenizer.all_special_ids)
    ids = list(token_ids)
    while ids and ids[-1] in special:
        ids.pop()
    text = tokenizer.decode(ids)
    for one in stop:
        text = text.partition(one)[0]
    return text


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
