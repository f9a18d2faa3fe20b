"""What the engine gives, as plain token ids, logprobs and version spans. Nothing here knows vLLM's classes by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trinity_bus.inference.errors import GenerationError

UNKNOWN_VERSION = -1
"""Of tokens that were drawn before any version was announced."""


@dataclass(frozen=True, slots=True)
class EngineCompletion:
    """One response."""

    token_ids: list[int]
    """[tokens] as drawn, the end token included where one was drawn."""
    logprobs: list[float]
    """[tokens] natural logarithm of each token's probability under the distribution that it was drawn from."""
    finish_reason: str
    """``stop`` or ``length``."""
    versions: list[tuple[int, int]]
    """(first token, model version), ascending: who drew what."""


def completion_of(output: Any) -> EngineCompletion:
    """Convert one ``vllm.outputs.CompletionOutput``.

    Raises:
        GenerationError: It was not finished, or its logprobs are not those of its tokens.
    """
    token_ids = list(output.token_ids)
    if output.finish_reason not in {"stop", "length"}:
        raise GenerationError(f"a response ended after {len(token_ids)} tokens with {output.finish_reason!r}")
    drawn = output.logprobs
    if drawn is None or list(drawn.token_ids) != token_ids:
        count = 0 if drawn is None else len(drawn.token_ids)
        raise GenerationError(f"the engine gave {count} logprobs for {len(token_ids)} drawn tokens, or of other tokens")
    return EngineCompletion(
        token_ids, list(drawn.logprobs), output.finish_reason, version_spans(output.weight_versions or ())
    )


def version_spans(spans: Sequence[Any]) -> list[tuple[int, int]]:
    """(first token, version) of vLLM's spans; a label that is not a number is a version that was never announced."""
    return [
        (span.start, int(span.version) if span.version.isdecimal() else UNKNOWN_VERSION)
        for span in spans
        if span.end > span.start
    ]
