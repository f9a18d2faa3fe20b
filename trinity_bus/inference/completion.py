"""What the engine gives, as plain token ids, logprobs and version spans. Nothing here knows vLLM's classes by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.experience import UInt8
from schemas.groups.vectors import UINT8
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.errors import GenerationError

UNKNOWN_VERSION = -1  # of tokens that were drawn before any version was announced


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """What one of several responses has got more, as it is drawn."""

    index: int  # which response
    token_ids: list[int]  # [tokens] new
    logprobs: list[float]  # [tokens] of these
    finish_reason: str | None  # of the last of a response; None where it goes on
    versions: list[tuple[int, int]]  # of the whole response, with the last of it
    routes: UInt8 | None = None  # of prompt and whole response, with the last of it: see ``Completion``


def delta_of(output: Any, first_version: int = UNKNOWN_VERSION, routed_before: int | None = None) -> EngineDelta:
    """Convert one ``vllm.outputs.CompletionOutput`` of a stream.

    ``routed_before``: tokens of the prompt, and of this response before these, where the engine was asked for routes.
    GenerationError: it ended otherwise than by an end or a limit, or has other logprobs or routes than tokens.
    """
    if output.finish_reason not in {None, "stop", "length"}:
        raise GenerationError(f"a response ended with {output.finish_reason!r}")
    versions = version_spans(output.weight_versions or (), first_version)
    token_ids, logprobs = _drawn(output)
    routes = None
    if output.finish_reason is not None and routed_before is not None:
        routes = _routes(output.routed_experts, routed_before + len(token_ids) - 1)
    return EngineDelta(output.index, token_ids, logprobs, output.finish_reason, versions, routes)


def completion_of(output: Any, first_version: int = UNKNOWN_VERSION, routed_prompt: int | None = None) -> Completion:
    """Convert one ``vllm.outputs.CompletionOutput``; GenerationError where it is not finished, or lacks something.

    ``routed_prompt``: tokens of the prompt, where the engine was asked for routes.
    """
    token_ids, logprobs = _drawn(output)
    if output.finish_reason not in {"stop", "length"}:
        raise GenerationError(f"a response ended after {len(token_ids)} tokens with {output.finish_reason!r}")
    versions = version_spans(output.weight_versions or (), first_version)
    routes = None if routed_prompt is None else _routes(output.routed_experts, routed_prompt + len(token_ids) - 1)
    return Completion(token_ids, logprobs, output.finish_reason, versions, routes)


def scores_of(output: Any, token_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token of a prompt but the first, from a ``vllm.outputs.RequestOutput``.

    It was asked for with ``prompt_logprobs=0``. GenerationError: there are none, or of other tokens.
    """
    found = None if output is None else output.prompt_logprobs
    if found is None or list(found.token_ids) != list(token_ids[1:]):
        raise GenerationError("the engine gave no log-probabilities of the tokens of a prompt, or of others")
    return list(found.logprobs)


def _drawn(output: Any) -> tuple[list[int], list[float]]:
    token_ids = list(output.token_ids)
    drawn = output.logprobs
    if drawn is None or list(drawn.token_ids) != token_ids:
        count = 0 if drawn is None else len(drawn.token_ids)
        raise GenerationError(f"the engine gave {count} logprobs for {len(token_ids)} drawn tokens, or of other tokens")
    return token_ids, list(drawn.logprobs)


def _routes(routes: Any, tokens: int) -> UInt8:
    if routes is None or routes.ndim != 3 or len(routes) != tokens or int(routes.max(initial=0)) > np.iinfo(UINT8).max:
        found = "none" if routes is None else f"{list(routes.shape)} of {routes.dtype}"
        raise GenerationError(f"the engine gave routes {found}, where [{tokens}, layers, k] of 0 to 255 are needed")
    made: UInt8 = routes.astype(UINT8, copy=False)
    return made


def version_spans(spans: Sequence[Any], first_version: int = UNKNOWN_VERSION) -> list[tuple[int, int]]:
    """Return (first token, version) of vLLM's spans, without those of no known version.

    A label that is not a number is a version that was never announced: that of the weights that it was started with.
    """
    drawn = [
        (span.start, int(span.version) if span.version.isdecimal() else first_version)
        for span in spans
        if span.end > span.start
    ]
    return [(start, version) for start, version in drawn if version != UNKNOWN_VERSION]
