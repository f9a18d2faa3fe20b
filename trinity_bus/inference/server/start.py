"""Whether a server can be an explorer's engine: asked of it before anything else, and refused with what it lacks.

::

    /v1/models: it is there, of some kind, and its sequences are long enough
      --> three drawn tokens: token ids, log-probabilities, and those of the distribution that they were drawn from
      --> where its weights are to move: the route by which it says what it serves

Log-probabilities that are told before the temperature is applied differ as much at temperature 2 as at 1; after it,
half as much. With ``top_k`` 1 there is one token to draw, so its log-probability is 0 where the filters are in it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trinity_bus import awake
from trinity_bus.inference.errors import EngineStartError, GenerationError, RequestRefusedError
from trinity_bus.inference.server.answers import TOP, ServerAnswer, read_answer, spread
from trinity_bus.inference.server.client import ServerClient, read_json
from trinity_bus.inference.server.kinds import ServerKind, kind_of

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
