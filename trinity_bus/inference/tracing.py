"""The span of each request to the engine: ``text_completion <model>``, from the request to its last response.

It has the names of the conventions for generative AI (https://github.com/open-telemetry/semantic-conventions-genai),
one span for the ``n`` responses that were asked for together, and is a child of the ``traceparent`` that the request
carries. Prompts and responses are not among its attributes: they are in the experiences.

vLLM's own traces are not used. With an endpoint it would build a provider and an exporter of its own, its spans would
be missing from a run's files, and it makes one for each response, with names older than the conventions and without
the model's, and none for a request that fails.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from trinity_bus.inference.concurrency import Steps
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import parent_context
from trinity_bus.telemetry.generative import operation_span

# The engine's parameters that a span tells, by its name of them.
_ASKED = {
    "max_tokens": names.GEN_AI_REQUEST_MAX_TOKENS,
    "temperature": names.GEN_AI_REQUEST_TEMPERATURE,
    "top_p": names.GEN_AI_REQUEST_TOP_P,
    "top_k": names.GEN_AI_REQUEST_TOP_K,
    "seed": names.GEN_AI_REQUEST_SEED,
}


class TokenCounter:
    """A vLLM "stat logger" that counts tokens, and notes how busy the engine is.

    Having one makes vLLM keep the statistics that spans tell.
    """

    def __init__(self) -> None:
        self.generated = 0  # tokens drawn so far, those of unfinished requests included
        self.cached = 0  # tokens of prompts that were found in the prefix cache so far
        self.preempted = 0  # requests that were preempted so far
        # Share of the cache in use, requests computed and waiting, after the last step
        self.kv_usage, self.running, self.waiting = 0.0, 0, 0
        self.steps = Steps()

    def __call__(self, _config: Any, _engine_index: int = 0) -> "TokenCounter":
        # A factory of itself, which is what vLLM asks for.
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.kv_usage = scheduler_stats.kv_cache_usage
            self.cached += scheduler_stats.prefix_cache_stats.hits
            self.running, self.waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
        if iteration_stats is not None:
            self.generated += iteration_stats.num_generation_tokens
            self.steps.add(1)
            self.preempted += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Do nothing: vLLM calls this when an engine sleeps, and ours never does."""


def request_span(
    model: str, prompt_tokens: int, arguments: Mapping[str, Any], traceparent: str | None
) -> AbstractContextManager[Span]:
    """Provide the span of one request, which is an error where the block raises."""
    attributes: dict[str, AttributeValue] = {
        names.GEN_AI_USAGE_INPUT_TOKENS: prompt_tokens,
        **{name: arguments[key] for key, name in _ASKED.items() if arguments.get(key) is not None},
    }
    if arguments["n"] != 1:
        attributes[names.GEN_AI_REQUEST_CHOICE_COUNT] = arguments["n"]
    return operation_span("text_completion", model, attributes, parent_context(traceparent))


def answered(span: Span, output: Any) -> None:
    """Tell of what was drawn. vLLM's ``RequestOutput`` has statistics of the response that ended last."""
    span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, sum(len(response.token_ids) for response in output.outputs))
    span.set_attribute(
        names.GEN_AI_RESPONSE_FINISH_REASONS, [str(response.finish_reason) for response in output.outputs]
    )
    if output.metrics is not None:
        span.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, output.metrics.first_token_latency)
        span.set_attribute(names.RL_QUEUE_SECONDS, output.metrics.scheduled_ts - output.metrics.queued_ts)
