"""The section ``explorer``: its name, its model, its engine and its runners."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from schemas.event import Follows
from schemas.record import MAX_VERSION, Identifier, Port
from trinity_bus.config.mesh import Dtype, TemplateOptions, of_mesh
from trinity_bus.config.values import (
    ENV_PREFIX,
    Count,
    HostName,
    InstanceName,
    Options,
    Seconds,
    Section,
    Size,
    without,
)

_POOL: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SERVER: Final = r"https?://[^\s/?#,]+"


# arguments of vLLM's engine that are not passed through, and why
REFUSED_ENGINE_OPTIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("model", "served_model_name", "download_dir"): "mesh.model_path says which model it is",
    ("dtype", "lora_dtype"): "set mesh.dtype",
    ("max_model_len",): "set mesh.max_model_len",
    ("max_num_seqs",): "set explorer.max_num_seqs",
    ("quantization", "quantization_config"): "set explorer.quantization",
    ("tensor_parallel_size",): "set explorer.tensor_parallel_size",
    ("enforce_eager",): "set explorer.compilation",
    ("seed",): "set explorer.seed",
    ("gpu_memory_utilization",): "set explorer.gpu_memory_utilization",
    ("enable_return_routed_experts",): "set explorer.capture_routes",
    ("max_logprobs", "return_sampling_mask"): "they tell from which tokens top-p, top-k and min-p had one drawn",
    ("enable_lora", "max_loras", "max_lora_", "max_cpu_loras", "lora_target_modules", "fully_sharded_loras"): (
        "set mesh.adapter_rank"
    ),
    ("logprobs_mode", "logits_processors", "generation_config", "override_generation_config", "watermark_config"): (
        "log-probabilities must be those that the trainer computes, of the distribution that a task asks for"
    ),
    ("runner", "convert", "pooler_config", "diffusion_config", "mm_encoder_only"): "the engine is to draw tokens",
    ("tokenizer", "tokenizer_", "skip_tokenizer_init", "revision", "code_revision", "config_format", "load_format"): (
        "model and tokenizer must be those of the trainer and the runners"
    ),
    ("hf_config_path", "hf_overrides", "model_weights", "model_class_overrides", "trust_remote_code", "hf_token"): (
        "the model must be the one that the trainer trains, and its repository runs no code here"
    ),
    ("worker_cls", "worker_extension_cls", "scheduler_cls", "weight_transfer_config", "distributed_executor_backend"): (
        "versions come to the engine by way of these"
    ),
    ("pipeline_parallel_size", "data_parallel_", "nnodes", "node_rank", "prefill_context_parallel_size"): (
        "versions are loaded by one engine, whose workers split each layer; start more explorers"
    ),
    ("cpu_offload_", "offload_"): "weights that are elsewhere are not exchanged with those of a version",
    ("kv_transfer_config", "kv_offloading_", "ec_transfer_config"): "what is cached must not outlive its version",
    ("enable_eplb", "eplb_config", "enable_elastic_ep", "elastic_ep_"): "versions go to the experts' first places",
    ("speculative_config", "spec_"): (
        "a model that drafts keeps the weights of the start, and where n-grams do, a request with top_k ends the engine"
    ),
    ("disable_log_stats", "aggregate_engine_logging"): "the explorer counts and paces itself by its own",
}


class ExplorerSettings(Section):
    """One explorer: its name, its model and its engine."""

    name: InstanceName = "explorer-0"
    """Its identity across restarts; must be unique. ``{host}`` is replaced by the host's name."""
    model: Identifier = of_mesh("model")
    pool: Identifier | None = None
    """The pool whose tasks it answers. Unset: tasks of the trained model, which name no pool."""
    follows: Follows | None = None
    """Which weights it serves: ``trainer``, each version of the trainer, or ``none``, always those of ``model_path``.
    Unset: the trainer's if there is one (``mesh.mode``)."""
    fixed_version: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """With ``follows`` ``none``: the trained model's version in ``model_path``, recorded in its samples. Unset: 0
    without a ``pool``, none in a pool."""
    abilities: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]*(,[a-z][a-z0-9_.-]*)*$")] = "logprobs"
    """What its engine and model can do, reported to clients; separated by commas, such as ``logprobs,tools``."""
    model_path: str | None = None
    """Folder of its initial Hugging Face model. Unset: that of ``mesh``."""
    engine_url: Annotated[str, Field(pattern=rf"^{_SERVER}(,{_SERVER}){{0,255}}$")] | None = None
    """An inference server to use as the engine, ``http://host:port``: vLLM, SGLang, or another that returns token ids
    (docs/pools.md). Several, separated by commas, share its requests. They must belong to this explorer alone. Unset:
    its own engine."""
    engine_router: Annotated[str, Field(pattern=rf"^{_SERVER}$")] | None = None
    """A router in front of those servers, ``http://host:port``, which gets the requests; versions go to the servers
    themselves. Unset: each request goes to the server that has the least to do."""
    engine_key: SecretStr | None = None
    """Bearer token for those servers. Unset: none."""
    slots: Count = 64
    """Maximum concurrent attempts."""
    adaptive_slots: bool = True
    """Whether it accepts fewer attempts when its engine is congested: by KV cache, preemptions and queue."""
    min_slots: Count = 1
    """Minimum concurrent attempts, however congested the engine is."""
    max_model_len: Count = of_mesh("max_model_len")
    dtype: Dtype = of_mesh("dtype")
    adapter_rank: int = of_mesh("adapter_rank")
    heartbeat_s: Seconds = 0.5
    """Interval of heartbeats."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Temperature of tasks that set none."""
    max_tokens: Count = of_mesh("max_tokens")
    chat_template_options: TemplateOptions = of_mesh("chat_template_options")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    cpu_kvcache_gib: Annotated[float, Field(gt=0, le=1 << 20, allow_inf_nan=False)] = 1.0
    """Maximum KV cache on a CPU, GiB; less is used if the longest sequences need less."""
    max_num_seqs: Size = 256
    """Sequences that the engine computes at once; the others wait."""
    caches: Literal["recomputed", "kept"] = "recomputed"
    """What happens to keys and values of responses in flight when the engine loads a version. ``recomputed``: every
    token comes from one version. ``kept``: later tokens come from new weights over old cache entries. New requests
    never use an older version's cache. A server of ``engine_url`` that is not vLLM finishes its responses first."""
    capture_routes: bool = False
    """Record which experts the engine's routers chose for each token, for ``trainer.router_replay``: layers times
    experts per token bytes. Only on GPUs, with models of at most 256 experts a layer."""
    turn_tokens: Annotated[int, Field(ge=0, le=1 << 16, multiple_of=32)] | None = None
    """Tokens of a response that are lost at most with an explorer: responses that may be longer are written to the log
    while they are drawn, and continued by the next attempt, see docs/workflows.md. A response whose reward raises is
    given to the next attempt again. 0: nothing is written, and they are drawn again. Unset: 256; with ``engine_url`` 0,
    because a server would be asked for each token."""
    cpu_threads: Count = 1
    """Threads of the engine's computation on a CPU."""
    cpu_cores: Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")] | None = None
    """Cores for the engine, such as ``0`` or ``0-3,8``; give several engines different ones. Unset: all."""
    engine_options: Annotated[Options, without(REFUSED_ENGINE_OPTIONS)] = Field(default={})
    """Further arguments of vLLM's ``AsyncEngineArgs``, such as ``{block_size = 32}``. Those that another setting
    decides, or that would break a guarantee, are refused with the reason. See docs/operations.md for those that were
    tried."""
    quantization: Literal["fp8"] | None = None
    """Quantization of the weights in its own engine, made from each version when it arrives; needs GPUs that support
    it. The trainer shows the difference as ``mismatch_k3``. Unset: ``dtype``. Not yet run."""
    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the model."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory for the engine."""
    compilation: Literal["auto", "on", "off"] = "auto"
    """Whether the engine compiles the model: slower start, faster generation. ``auto``: on GPUs."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """Seed of sampling: each request derives its own from it, its task and its run, on whichever explorer. A task's
    seed has priority. Unset: different at each start."""
    start_timeout_s: Seconds = 600.0
    """Timeout of the engine's start."""
    drain_s: Seconds = 2.0
    """How long attempts may continue when the explorer is stopped; then others repeat them, but for completed turns and
    what is written of long responses (``turn_tokens``)."""
    runners: Count = 1
    """Processes that run workflows; slots are divided among them."""
    workflow_modules: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*(, ?[A-Za-z_][\w.]*)*$")] | None = None
    """Your modules that register workflows, separated by commas, such as ``my_tasks,my_package.games``: installed, in
    the working folder, or on ``PYTHONPATH``. They must not start threads. Unset: the included workflows."""
    runner_python: Path | None = None
    """Python interpreter of another environment for runners, such as ``/envs/games/bin/python``, with
    ``trinity-bus[runner]`` of the explorer's version, if dependencies conflict with vLLM's. Unset: the explorer's."""
    runner_stuck_s: Seconds = 30.0
    """A runner that does not answer for this long, because a workflow blocks it, is killed and replaced."""
    cancel_grace_s: Seconds = 5.0
    """How long a cancelled workflow may take to end before its runner is killed and replaced."""
    runner_max_attempts: Count | None = None
    """Attempts after which a runner is replaced, because of what workflows leave behind. Unset: never."""
    runner_max_rss_mib: Count | None = None
    """Memory above which a runner gets no more attempts and is replaced, MiB; at twice as much it is killed. An idle
    runner has about 120, mostly shared. Unset: unlimited."""
    runner_report_s: Seconds = 1.0
    """Interval of reports on the runners' states."""
    runner_user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """User, by name or number, of the runners; requires an explorer that starts as root. Unset: the explorer's; for
    root the user ``workflows`` if it exists, as in the images. See docs/workflows.md."""
    runner_environment: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(,[A-Za-z_]\w*)*$")] | None = None
    """Environment variables for runners besides the harmless ones, separated by commas, such as
    ``JUDGE_URL,JUDGE_KEY``. Workflow code can read them. Unset: none."""

    http_port: Port | None = None
    """Port for gateways and other explorers; 0: any free one. Unset: it does not listen."""
    http_host: HostName = "127.0.0.1"
    """Name or address at which it listens and gateways reach it. ``{host}`` is replaced by the host's name."""
    http_key: SecretStr | None = None
    """Shared secret of this explorer and those that send it requests; 16 characters or more."""
    auxiliary_pools: Annotated[str, Field(pattern=rf"^{_POOL}(,{_POOL})*$")] | None = None
    """Pools that workflows may send requests to, separated by commas, such as ``judge,teacher``. Their explorers need
    ``http_port``, and all need the same ``http_key``. Unset: none."""
    auxiliary_wait_s: Seconds = 60.0
    """How long such a request waits for an explorer of the pool."""
    auxiliary_timeout_s: Seconds = 300.0
    """Timeout of such a request, including that wait."""

    @property
    def most_lost_tokens(self) -> int:
        """Tokens of a response that may go with an explorer; 0: all that it has."""
        if self.turn_tokens is not None:
            return self.turn_tokens
        return 256 if self.engine_url is None else 0

    @property
    def is_in_own_pool(self) -> bool:
        # Whether it answers the tasks of the model that is trained.
        return self.pool in (None, self.model)

    @property
    def serves_adapter(self) -> bool:
        # Whether versions are adapters, beside the weights that it starts with.
        return self.adapter_rank > 0 and self.follows != "none"

    @property
    def served_model(self) -> str:
        # A checkpoint for a pool has the name of the pool.
        return self.pool if self.pool is not None and self.follows == "none" else self.model

    @property
    def first_version(self) -> int:
        # Before any is announced; -1 for none that is known.
        if self.follows != "none":
            return -1
        return self.fixed_version if self.fixed_version is not None else 0 if self.is_in_own_pool else -1

    @field_validator("runner_environment")
    @classmethod
    def _spares_secrets(cls, value: str | None) -> str | None:
        ours = [name for name in (value or "").split(",") if name.upper().startswith(ENV_PREFIX)]
        if ours:
            raise PydanticCustomError("ours", "workflows may not have {name}", {"name": ours[0]})
        return value
