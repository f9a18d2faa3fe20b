"""What servers differ in: the options of a request that they know, and how they take weights from a folder.

A server says of what kind it is by ``owned_by`` of ``/v1/models``. One of another kind is asked with OpenAI's own
options alone, and serves the checkpoint that it was started with. An option that a kind does not know is refused: most
servers ignore what they do not know, and draw from another distribution than they were asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
    """Return the kind of a server, by what it says of itself."""
    return KINDS.get(owned_by, ServerKind(owned_by or "unnamed", _OPENAI))
