"""What a task asks for, as vLLM's sampling parameters."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from schemas.sampling import MAX_VOCABULARY, Sampling, StructuredOutputs
from schemas.turn import MAX_RESPONSES
from trinity_bus.inference.errors import RequestRefusedError

if TYPE_CHECKING:
    from vllm import SamplingParams

# Options that vLLM has otherwise; it calls all others by the same names.
_OTHERWISE: Final = frozenset({"temperature", "max_tokens", "logit_bias", "structured_outputs"})

# Tokens of which one is drawn, at most, for it to be known which: the engine is asked about so many without a top-k.
MOST_KEPT: Final = 4096

# Asks for the log-probability of each token of a prompt: the one that is drawn besides is thrown away.
SCORING: Mapping[str, Any] = {
    "n": 1,
    "temperature": 0.0,
    "max_tokens": 1,
    "prompt_logprobs": 0,
    "flat_logprobs": True,
    "detokenize": False,
}


def check_count(responses: int) -> None:
    """RequestRefusedError where nobody may ask for so many to one prompt."""
    if not 1 <= responses <= MAX_RESPONSES:
        raise RequestRefusedError(f"{responses} responses to one prompt; {MAX_RESPONSES} are the most")


def can_go_on(sampling: Sampling) -> bool:
    """Whether the rest of a response is drawn as it would have been by an engine that takes its begin for a prompt.

    Not where what is drawn depends on the response as a whole (stop strings, which may begin before; penalties, least
    lengths, structures), nor with a seed, which would draw the rest as it has drawn the begin.
    """
    return not (sampling.altered_by or sampling.stop or sampling.seed is not None)


def sampling_arguments(
    sampling: Sampling, n: int, *, temperature: float, max_tokens: int, most_kept: int = 0
) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.SamplingParams``, but for its output kind.

    ``temperature`` and ``max_tokens`` count where the task names none. ``most_kept``: how many tokens are asked about
    at most where only some are kept to be drawn from; every request of the engine's batch costs more for that.
    """
    temperature = temperature if sampling.temperature is None else sampling.temperature
    # The logprob of each drawn token and of no other. Text is needed only where vLLM is to find strings in it.
    arguments: dict[str, Any] = {
        "n": n,
        "temperature": temperature,
        "max_tokens": max_tokens if sampling.max_tokens is None else sampling.max_tokens,
        "logprobs": min(_likeliest(sampling), most_kept) if temperature > 0 else 0,
        "flat_logprobs": True,
        "detokenize": bool(sampling.stop),
    }
    arguments |= {name: value for name, value in sampling.given().items() if name not in _OTHERWISE and value != []}
    if sampling.logit_bias:
        arguments["logit_bias"] = {int(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.structured_outputs is not None:
        arguments["structured_outputs"] = _structured(sampling.structured_outputs)
    return arguments


def _likeliest(sampling: Sampling) -> int:
    # The likeliest tokens that are asked about: more than are kept, so that one which was not shows that all are known.
    # Of those that are as likely as the last of ``top_k``, some samplers keep all, and bfloat16 has many that are.
    if sampling.altered_by:
        return 0
    if sampling.top_k is not None and sampling.top_k > 0:
        return 2 * sampling.top_k + 16
    is_limited = (sampling.top_p is not None and sampling.top_p < 1) or bool(sampling.min_p)
    return MAX_VOCABULARY if is_limited else 0


def vllm_parameters(arguments: Mapping[str, Any], *, stream: bool = False) -> "SamplingParams":
    """Return vLLM's own, or raise its VLLMClientError; ``stream``: each output is what is new."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    given = dict(arguments)
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    return SamplingParams(**given, output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY)


def _structured(asked: StructuredOutputs) -> dict[str, Any]:
    given = asked.model_dump(exclude_none=True)
    return {"json" if name == "json_schema" else name: value for name, value in given.items()}
