"""Whether a server can be an explorer's engine: asked of it before anything else, and refused with what it lacks.

::

    /v1/models: it is there, of some kind (``owned_by``), and its sequences are long enough
      --> three drawn tokens: token ids, log-probabilities, and those of the distribution that they were drawn from
      --> where its weights are to move: the route by which it says what it serves

A server of another kind is asked with OpenAI's own options alone, and serves the checkpoint that it was started with.
An option that a kind does not know is refused: most servers ignore what they do not know, and draw from another
distribution than they were asked for. Log-probabilities that are told before the temperature is applied differ as much
at temperature 2 as at 1; after it, half as much. With ``top_k`` 1 there is one token to draw, so its log-probability is
0 where the filters are in it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trinity_bus import awake
from trinity_bus.inference.errors import EngineStartError, GenerationError, RequestRefusedError
from trinity_bus.inference.server.client import TOP, ServerAnswer, ServerClient, read_answer, read_json, spread

_OPENAI: Final = frozenset(
    ["n", "temperature", "max_tokens", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"]
)
_BOTH: Final = _OPENAI | {
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens")
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request of those by which a server takes a version."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    options: frozenset[str]  # of a request, by vLLM's names
    # Where it says by which label it knows its weights, in ``weight_version``; None where it takes no others
    label_path: str | None = None
    # Of ``/metrics``: share of the cache in use, requests computed, waiting, and preempted so far
    metrics: tuple[str, ...] = ()
    needs: str = ""  # how it is started so that it takes weights

    def reload(self, folder: str, label: str) -> list[Call]:
        """Return what has it take the weights in a folder, forget what it has cached, and know them by a label."""
        if self.name == "sglang":
            asked = {"model_path": folder, "weight_version": label, "flush_cache": True}
            return [Call("/update_weights_from_disk", asked)]
        return [
            Call("/pause?mode=wait&clear_cache=true", {}),
            Call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}),
            Call("/update_weight_version", {"new_version": label}),
            Call("/resume", {}),
        ]


KINDS: Final[Mapping[str, ServerKind]] = {
    "vllm": ServerKind(
        "vllm",
        _BOTH | {"bad_words", "allowed_token_ids", "structured_outputs", "thinking_token_budget"},
        "/weight_info",
        (
            "vllm:kv_cache_usage_perc",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:num_preemptions_total",
        ),
        "with VLLM_SERVER_DEV_MODE=1 in its environment, reachable by its explorer alone",
    ),
    "sglang": ServerKind("sglang", _BOTH, "/get_model_info", needs="in a version that has /get_model_info"),
}


def kind_of(owned_by: str) -> ServerKind:
    return KINDS.get(owned_by, ServerKind(owned_by or "unnamed", _OPENAI))


_AGAIN_S: Final = 0.5
_PROBE_S: Final = 60.0
_PROMPT: Final = [1, 2, 3]
_SAME: Final = 1e-3  # within this, two log-probabilities are taken to be equal


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Served:
    model: str  # its name, which requests say
    kind: ServerKind
    filters_told: bool  # log-probabilities are those after ``top_p``, ``top_k`` and ``min_p``


async def examine(client: ServerClient, *, max_model_len: int, follows: bool, limit_s: float) -> Served:
    """Return what a server is, or raise EngineStartError. ``follows``: its weights are to move."""
    try:
        model = await _model(client, limit_s)
        if model.max_model_len is not None and model.max_model_len < max_model_len:
            raise EngineStartError(
                f"{client.url} takes {model.max_model_len} tokens, explorer.max_model_len is {max_model_len}: start "
                "it with a longer one (--max-model-len, --context-length), or set this lower"
            )
        kind = kind_of(model.owned_by)
        filters_told = await _draws(client, model.id, kind)
        if follows:
            await _takes_weights(client, kind)
    except (GenerationError, RequestRefusedError) as error:
        raise EngineStartError(f"{client.url} cannot be an engine: {error}") from error
    return Served(model.id, kind, filters_told)


async def _model(client: ServerClient, limit_s: float) -> _Model:
    until = awake.now() + limit_s
    while True:
        try:
            models = read_json(await client.ask("/v1/models", limit_s=limit_s), _Models).data
            break
        except RequestRefusedError as error:
            raise EngineStartError(f"{client.url} refuses explorer.engine_key, or has no models: {error}") from error
        except GenerationError:
            # It may be starting.
            if awake.now() >= until:
                raise
            await asyncio.sleep(_AGAIN_S)
    if len(models) != 1:
        names = ", ".join(one.id for one in models) or "none"
        raise EngineStartError(f"{client.url} serves {names}; an explorer's engine serves one model")
    return models[0]


async def _draws(client: ServerClient, model: str, kind: ServerKind) -> bool:
    warm, hot = [await _first(client, model, temperature) for temperature in (1.0, 2.0)]
    choice = warm.choices[0] if warm.choices else None
    if choice is None or not choice.token_ids:
        raise EngineStartError(
            f"{client.url} gives no token ids: it needs the option return_token_ids of /v1/completions, which "
            "vllm serve (0.10.2 and later) and SGLang have"
        )
    if choice.logprobs is None or not choice.logprobs.token_logprobs or spread(warm) < _SAME:
        raise EngineStartError(f"{client.url} gives no log-probabilities: it needs the option logprobs, up to {TOP}")
    if spread(hot) > 0.75 * spread(warm):
        raise EngineStartError(
            f"{client.url} gives log-probabilities of another distribution than it draws from: start vLLM with "
            "--logprobs-mode processed_logprobs"
        )
    if "top_k" not in kind.options:
        return False
    choices = (await _first(client, model, 1.0, top_k=1)).choices
    only = choices[0].logprobs if choices else None
    return only is not None and all(logprob is not None and logprob > -_SAME for logprob in only.token_logprobs)


async def _first(client: ServerClient, model: str, temperature: float, **more: Any) -> ServerAnswer:
    asked = {
        "model": model,
        "prompt": _PROMPT,
        "max_tokens": 1,
        "temperature": temperature,
        "logprobs": TOP,
        "return_token_ids": True,
        # Two tokens may have one text; vLLM can tell them by their ids here too.
        "return_tokens_as_token_ids": True,
    }
    return read_answer(await client.ask("/v1/completions", {**asked, **more}, limit_s=_PROBE_S))


async def _takes_weights(client: ServerClient, kind: ServerKind) -> None:
    if kind.label_path is None:
        raise EngineStartError(
            f"{client.url} is of a kind ({kind.name}) that takes no weights while it serves: set explorer.follows to "
            "none, and explorer.pool, for it to serve what it was started with"
        )
    try:
        await client.ask(kind.label_path, limit_s=_PROBE_S)
    except RequestRefusedError as error:
        raise EngineStartError(f"{client.url} takes no weights: start it {kind.needs} ({error})") from error
