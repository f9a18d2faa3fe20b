"""Whether a server can be an explorer's engine: asked of it before anything else, and refused with what it lacks.

::

    /v1/models: it is there, of some kind (``owned_by``), and its sequences are long enough
      --> where its weights are to move: the route by which it says what it serves; and it goes on, if an explorer that
          was killed has left it paused
      --> three drawn tokens: token ids, log-probabilities, and those of the distribution that they were drawn from

vLLM is asked by its own ``/inference/v1/generate``, every other server by OpenAI's ``/v1/completions``. One of a kind
that is not known is asked with OpenAI's own options alone, and serves the checkpoint that it was started with. An
option that a kind does not know is refused: most servers ignore what they do not know, and draw from another
distribution than they were asked for. Log-probabilities that are told before the temperature is applied differ as much
at temperature 2 as at 1; after it, half as much. With ``top_k`` 1 there is one token to draw, so its log-probability is
0 where the filters are in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.errors import EngineStartError, RequestRefusedError
from trinity_bus.inference.server.client import TOP, ServerAnswer, ServerClient, read_answer, read_json, spread

_OPENAI: Final = frozenset(
    ["n", "temperature", "max_tokens", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"]
)
_BOTH: Final = _OPENAI | {
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens")
}


_GENERATE: Final = "/inference/v1/generate"
_RESUME: Final = "/resume"
ABORT: Final = "/abort_requests"  # of vLLM's: ends all, paused or not


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    options: frozenset[str]  # of a request, by vLLM's names
    # Where it says by which label it knows its weights, in ``weight_version``; None where it takes no others
    label_path: str | None = None
    # Of ``/metrics``: share of the cache in use, requests computed, waiting, and preempted so far
    metrics: tuple[str, ...] = ()
    needs: str = ""  # how it is started so that it takes weights
    path: str = "/v1/completions"  # by which it is asked

    @property
    def keeps_requests(self) -> bool:
        """Whether requests go on with other weights, and it tells which of their tokens were drawn by which."""
        return self.path == _GENERATE

    def body(self, model: str, token_ids: Sequence[int], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request for what follows token ids, by arguments of vLLM's names."""
        if self.path == _GENERATE:
            # Text is needed only where it is to find strings in it.
            asked = {"logprobs": 0, "detokenize": "stop" in arguments, **arguments}
            return {"model": model, "token_ids": list(token_ids), "sampling_params": asked}
        return {"model": model, "prompt": list(token_ids), "logprobs": 0, "return_token_ids": True, **arguments}

    def scoring(self, model: str, token_ids: Sequence[int]) -> dict[str, Any]:
        """Return a request for the log-probabilities of the tokens themselves."""
        one: dict[str, Any] = {"n": 1, "max_tokens": 1, "temperature": 1.0}
        if self.path == _GENERATE:
            return self.body(model, token_ids, {**one, "top_k": 1, "prompt_logprobs": 0})
        # SGLang tells nothing of a prompt where no likely tokens are asked for.
        return {**self.body(model, token_ids, one), "logprobs": 1, "echo": True}

    def reload(self, folder: str, label: str, *, keep_caches: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return by which requests, path and body, it takes the weights in a folder, and knows them by a label."""
        if not self.keeps_requests:
            asked = {"model_path": folder, "weight_version": label, "flush_cache": True}
            return [("/update_weights_from_disk", asked)]
        return [
            (f"/pause?mode=keep&clear_cache={str(not keep_caches).lower()}", {}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}),
            ("/update_weight_version", {"new_version": label}),
            (_RESUME, {}),
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
        _GENERATE,
    ),
    "sglang": ServerKind("sglang", _BOTH, "/model_info", needs="in a version that has /model_info"),
}


def kind_of(owned_by: str) -> ServerKind:
    return KINDS.get(owned_by, ServerKind(owned_by or "unnamed", _OPENAI))


_PROBE_S: Final = 60.0
_PROMPT: Final = [1, 2, 3]
_SAME: Final = 1e-3  # within this, two log-probabilities are taken to be equal


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Label(msgspec.Struct):
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    model: str  # its name, which requests say
    kind: ServerKind
    filters_told: bool  # log-probabilities are those after ``top_p``, ``top_k`` and ``min_p``


async def examine(client: ServerClient, settings: ExplorerSettings) -> tuple[Served, str | None]:
    """Return what a server is, and by which label it knows its weights, where these are to move.

    EngineStartError: it cannot be an engine. GenerationError: it does not answer.
    """
    try:
        models = read_json(await client.ask("/v1/models", limit_s=_PROBE_S), _Models).data
    except RequestRefusedError as error:
        raise EngineStartError(f"{client.url} refuses explorer.engine_key, or has no models: {error}") from error
    if len(models) != 1:
        names = ", ".join(one.id for one in models) or "none"
        raise EngineStartError(f"{client.url} serves {names}; an explorer's engine serves one model")
    (model,) = models
    if model.max_model_len is not None and model.max_model_len < settings.max_model_len:
        raise EngineStartError(
            f"{client.url} takes {model.max_model_len} tokens, explorer.max_model_len is {settings.max_model_len}: "
            "start it with a longer one (--max-model-len, --context-length), or set this lower"
        )
    kind = kind_of(model.owned_by)
    label = None if settings.follows == "none" else await _takes_weights(client, kind)
    try:
        return Served(model.id, kind, await _draws(client, model.id, kind, settings)), label
    except RequestRefusedError as error:
        raise EngineStartError(f"{client.url} cannot be an engine: {error}") from error


async def _draws(client: ServerClient, model: str, kind: ServerKind, settings: ExplorerSettings) -> bool:
    warm, hot = [await _first(client, model, kind, temperature) for temperature in (1.0, 2.0)]
    choice = warm.choices[0] if warm.choices else None
    if choice is None or not choice.token_ids:
        raise EngineStartError(
            f"{client.url} gives no token ids: it needs the option return_token_ids of /v1/completions, as SGLang has"
        )
    if choice.logprobs is None or spread(warm) < _SAME:
        raise EngineStartError(f"{client.url} gives no log-probabilities: it needs the option logprobs, up to {TOP}")
    if spread(hot) > 0.75 * spread(warm):
        raise EngineStartError(
            f"{client.url} gives log-probabilities of another distribution than it draws from: start vLLM with "
            "--logprobs-mode processed_logprobs"
        )
    if kind.keeps_requests and choice.weight_versions is None:
        raise EngineStartError(f"{client.url} does not tell which weights drew a token: vLLM 0.32 and later do")
    if settings.capture_routes and choice.routed_experts is None:
        raise EngineStartError(
            f"{client.url} does not tell which experts were chosen: start vLLM with --enable-return-routed-experts, "
            "or unset explorer.capture_routes"
        )
    if "top_k" not in kind.options:
        return False
    choices = (await _first(client, model, kind, 1.0, top_k=1)).choices
    only = choices[0].logprobs if choices else None
    if only is None:
        return False
    told = only.token_logprobs if only.content is None else [one.logprob for one in only.content]
    return all(logprob is not None and logprob > -_SAME for logprob in told)


async def _first(client: ServerClient, model: str, kind: ServerKind, temperature: float, **more: Any) -> ServerAnswer:
    asked: dict[str, Any] = {"n": 1, "max_tokens": 1, "temperature": temperature, "logprobs": TOP}
    if kind.keeps_requests:
        # One that tells of which tokens it has drawn refuses what does not limit them.
        asked["top_k"] = TOP
    return read_answer(await client.ask(kind.path, kind.body(model, _PROMPT, {**asked, **more}), limit_s=_PROBE_S))


async def _takes_weights(client: ServerClient, kind: ServerKind) -> str | None:
    if kind.label_path is None:
        raise EngineStartError(
            f"{client.url} is of a kind ({kind.name}) that takes no weights while it serves: set explorer.follows to "
            "none, and explorer.pool, for it to serve what it was started with"
        )
    try:
        label = read_json(await client.ask(kind.label_path, limit_s=_PROBE_S), Label).weight_version
        if kind.keeps_requests:
            await client.ask(_RESUME, {}, limit_s=_PROBE_S)
    except RequestRefusedError as error:
        raise EngineStartError(f"{client.url} takes no weights: start it {kind.needs} ({error})") from error
    return label
