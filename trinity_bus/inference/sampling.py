"""What a task asks for, as vLLM's sampling parameters."""

from typing import Any

from schemas.task import Sampling


def sampling_arguments(sampling: Sampling, n: int, *, temperature: float, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of ``vllm.SamplingParams``, but for its output kind.

    The logprob of each drawn token is asked for and of no other. Text is not needed, so nothing is detokenized, unless
    the task stops at strings, which vLLM finds in the text.

    Args:
        sampling: The task's wishes.
        n: How many responses.
        temperature: Where the task names none.
        max_tokens: Where the task names none.
    """
    arguments: dict[str, Any] = {
        "n": n,
        "temperature": temperature if sampling.temperature is None else sampling.temperature,
        "max_tokens": max_tokens if sampling.max_tokens is None else sampling.max_tokens,
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": bool(sampling.stop),
    }
    for name in ("top_p", "top_k", "min_p", "seed"):
        if (value := getattr(sampling, name)) is not None:
            arguments[name] = value
    if sampling.stop:
        arguments["stop"] = list(sampling.stop)
    return arguments
