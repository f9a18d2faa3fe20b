"""vLLM's own span of each request (``llm_request``), through the tracer provider of this process.

vLLM traces only when it is started with an OTLP endpoint, and then builds a provider and an exporter of its own. Its
spans would be missing from a run's files, and with an endpoint they would go out twice-configured. But the span is made
in the front end, by the *global* provider, from statistics that come with each output. So tracing is switched on after
the engine has started: the provider is then ours, and ``llm_request`` goes wherever this process's other spans go, to a
file or to the OTLP endpoint of the ``OTEL_`` variables, as a child of the ``traceparent`` that the request carries. The
engine's processes know nothing of it.

The span has vLLM's names, older than today's conventions: ``gen_ai.usage.prompt_tokens``,
``gen_ai.usage.completion_tokens``, ``gen_ai.latency.time_in_queue``, ``gen_ai.latency.time_to_first_token``,
``gen_ai.latency.e2e`` and others.
"""

from typing import Any


class TokenCounter:
    """A vLLM "stat logger" that counts tokens. Having one makes vLLM keep the statistics that its spans are made of."""

    def __init__(self) -> None:
        self.generated = 0
        """Tokens drawn so far, those of unfinished requests included."""

    def __call__(self, _config: Any, _engine_index: int = 0) -> "TokenCounter":
        """As a factory of itself, which is what vLLM asks for."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Called by vLLM after each step."""
        if iteration_stats is not None:
            self.generated += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Called by vLLM at start; there is nothing to say."""

    def log(self) -> None:
        """Called by servers from time to time; there is nothing to say."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Called by vLLM when an engine sleeps; ours never does."""


def enable_request_spans(llm: Any) -> None:
    """Have a started ``AsyncLLM`` emit ``llm_request`` through the global tracer provider.

    Args:
        llm: Started without an OTLP endpoint of its own, with a ``TokenCounter``.
    """
    # Read when a request is added, to decide whether its trace context is kept.
    llm.observability_config.otlp_traces_endpoint = "in-process"
    # Read when a request is finished, to decide whether its span is made.
    llm.output_processor.tracing_enabled = True


def trace_headers(traceparent: str | None) -> dict[str, str] | None:
    """The carrier that vLLM takes the parent of its span from."""
    return None if traceparent is None else {"traceparent": traceparent}
