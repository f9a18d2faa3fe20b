"""What the engine gives, as plain token ids, logprobs and version spans. Nothing here knows vLLM's classes by name."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from schemas.experience import UInt8
from schemas.groups.kept import MAX_KEPT_BYTES, KeptTokens, encode_kept
from schemas.groups.vectors import UINT8
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.errors import GenerationError

EngineCompletion = Completion  # the name by which scripts that come with bug reports import it
UNKNOWN_VERSION = -1  # of tokens that were drawn before any version was announced

# What each response to a request has got since the last call, with the versions of all that it has.
type SoFar = Callable[[], Sequence[Completion]]
type Watch = Callable[[SoFar], None]


class Gathered:
    """Responses that come in parts: ``whole``, and what is new of each. Pure.

    An end may be told behind its token, so the newest part of a response that goes on is told with the next one.
    """

    def __init__(self, n: int) -> None:
        self.whole = [Completion() for _ in range(n)]
        self.version = UNKNOWN_VERSION  # that draws all of them
        self._new: list[list[Completion]] = [[] for _ in range(n)]

    def add(self, index: int, more: Completion) -> None:
        whole = self.whole[index]
        whole.add(more)
        whole.finish_reason, whole.versions, whole.routes = more.finish_reason, more.versions, more.routes
        self._new[index].append(more)

    def so_far(self) -> list[Completion]:
        return [self._take(index, whole.finish_reason) for index, whole in enumerate(self.whole)]

    def _take(self, index: int, reason: str) -> Completion:
        parts = self._new[index]
        ready, self._new[index] = (parts, []) if reason else (parts[:-1], parts[-1:])
        versions = [] if self.version == UNKNOWN_VERSION else [(0, self.version)]
        told = Completion(finish_reason=reason, versions=versions)
        for part in ready:
            told.add(part)
        return told


def completion_of(
    output: Any,
    first_version: int = UNKNOWN_VERSION,
    routed_before: int | None = None,
    *,
    partial: bool = False,
    most_kept: int = 0,
) -> Completion:
    """Convert one ``vllm.outputs.CompletionOutput``; with ``partial`` of a stream: what a response has got more.

    ``routed_before``: tokens of the prompt, and of this response before these, where the engine was asked for routes;
    they are told with the last of a response. ``most_kept``: of how many tokens it is known that a token was drawn from
    no others, where it was asked which. GenerationError: it ended otherwise than by an end or a limit, or has
    other logprobs or routes than tokens.
    """
    reason = ended_by(output.finish_reason, partial=partial)
    token_ids, logprobs, kept = _drawn(output, most_kept)
    versions = version_spans(output.weight_versions or (), first_version)
    routes = None
    if reason and routed_before is not None:
        routes = routes_of(output.routed_experts, routed_before + len(token_ids) - 1)
    return Completion(token_ids, logprobs, reason, versions, routes, kept)


def ended_by(reason: str | None, *, partial: bool) -> str:
    """Return why a response ended, empty where it goes on; GenerationError: neither by an end nor by a limit."""
    if reason not in {"stop", "length"} and not (partial and reason is None):
        raise GenerationError(f"a response ended with {reason!r}")
    return reason or ""


def scores_of(output: Any, token_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token of a prompt but the first, from vLLM's answer to ``SCORING``."""
    found = None if output is None else output.prompt_logprobs
    if found is None or list(found.token_ids) != list(token_ids[1:]):
        raise GenerationError("the engine gave no log-probabilities of the tokens of a prompt, or of others")
    return list(found.logprobs)


def _drawn(output: Any, most_kept: int) -> tuple[list[int], list[float], bytearray | None]:
    token_ids = list(output.token_ids)
    drawn = output.logprobs
    if drawn is None or list(drawn.token_ids) != token_ids:
        count = 0 if drawn is None else len(drawn.token_ids)
        raise GenerationError(f"the engine gave {count} logprobs for {len(token_ids)} drawn tokens, or of other tokens")
    # An explorer has them stand where vLLM has tokens as text: see ``launch``.
    kept = told_kept(drawn.decoded_tokens, most_kept) if most_kept > 0 else None
    return token_ids, list(drawn.logprobs), kept


def told_kept(sets: Sequence[Any], most_kept: int) -> bytearray | None:
    """Return the sets of tokens that each was drawn from, each an array; of larger ones it is unknown what they are."""
    known = [one if len(one) <= most_kept else one[:0] for one in sets]
    counts = np.array([*map(len, known)], np.int64)
    if not counts.any():
        return None
    kept = encode_kept(KeptTokens(counts, np.concatenate(known).astype(np.int64)))
    return bytearray(kept) if len(kept) <= MAX_KEPT_BYTES else None


def routes_of(routes: Any, tokens: int) -> UInt8:
    """Return the experts that were chosen for each of ``tokens``; GenerationError: of others, or no such ones."""
    is_right = routes is not None and routes.ndim == 3 and len(routes) == tokens
    if not is_right or routes.min(initial=0) < 0 or routes.max(initial=0) > np.iinfo(UINT8).max:
        found = "none" if routes is None else f"{list(routes.shape)} of {routes.dtype}"
        raise GenerationError(f"the engine gave routes {found}, where [{tokens}, layers, k] of 0 to 255 are needed")
    made: UInt8 = routes.astype(UINT8, copy=False)
    return made


def version_spans(spans: Sequence[Any], first_version: int = UNKNOWN_VERSION) -> list[tuple[int, int]]:
    """Return (first token, version) of vLLM's spans, without those of no known version."""
    # A label that is not a number is a version that was never announced: that of the weights it was started with.
    drawn = [
        (span.start, int(span.version) if span.version.isdecimal() else first_version)
        for span in spans
        if span.end > span.start
    ]
    return [(start, version) for start, version in drawn if version != UNKNOWN_VERSION]
