"""The section ``explorer``: its name, its model, its engine and its runners."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from schemas.event import Follows
from schemas.numbers import MAX_VERSION, Port
from schemas.record import Identifier
from trinity_bus.config.mesh import Dtype, TemplateOptions, of_mesh
from trinity_bus.config.names import ENV_PREFIX
from trinity_bus.config.section import Section
from trinity_bus.config.values import Count, HostName, InstanceName, Options, Seconds, Size, allowed_options

_POOL: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"


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
    ("enable_lora", "max_loras", "max_lora_", "max_cpu_loras", "lora_target_modules", "fully_sharded_loras"): (
        "set mesh.adapter_rank"
    ),
    ("logprobs_mode", "logits_processors", "generation_config", "override_generation_config", "watermark_config"): (
        "log-probabilities must be those that the trainer computes, of the distribution that a task asks for"
    ),
    ("runner", "convert", "pooler_config", "diffusion_config", "mm_encoder_only"): "the engine is to draw tokens",
    ("tokenizer", "tokenizer_", "skip_tokenizer_init", "revision", "code_revision", "config_format"): (
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
    ("speculative_config", "spec_"): "what drafts tokens keeps the weights of the start while versions come",
    ("disable_log_stats", "aggregate_engine_logging"): "the explorer counts and paces itself by its own",
}
"""Arguments of vLLM's engine that are not passed through, and why."""


class ExplorerSettings(Section):
    """One explorer: its name, its model and its engine."""

    name: InstanceName = "explorer-0"
    """Its identity over restarts: no two live explorers share one. ``{host}`` in it is the host's name."""
    model: Identifier = of_mesh("model")
    pool: Identifier | None = None
    """The pool whose tasks it answers. Unset: that of the model that is trained, which tasks ask for that name none."""
    follows: Follows | None = None
    """Whose weights it serves: ``trainer``, version after version, or ``none``, those of ``model_path`` for good.
    Unset: the trainer's where there is one (``mesh.mode``)."""
    fixed_version: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    """With ``follows`` ``none``: which version of the model that is trained ``model_path`` holds; it stands in what is
    drawn. Unset: 0 without a ``pool``, none in a pool."""
    abilities: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]*(,[a-z][a-z0-9_.-]*)*$")] = "logprobs"
    """What its engine and model can do, for who looks for one; separated by commas, such as ``logprobs,tools``."""
    model_path: str | None = None
    """Folder of the Hugging Face model that it starts from. Unset: that of ``mesh``."""
    engine_url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+$")] | None = None
    """An inference server to draw from, ``http://host:port``: one of vLLM's or SGLang's, or another whose
    ``/v1/completions`` gives token ids (docs/pools.md). It is this explorer's alone. Unset: an engine of its own."""
    engine_key: SecretStr | None = None
    """What that server is shown, as a bearer token. Unset: nothing."""
    slots: Count = 64
    """Rollouts run at once, at most."""
    adaptive_slots: bool = True
    """Whether it asks for less where its engine has no room for so many: by KV cache, preemptions and queue. What it is
    not handed stays on the log."""
    min_slots: Count = 1
    """Rollouts run at once, at least, however little room there is."""
    max_model_len: Count = of_mesh("max_model_len")
    dtype: Dtype = of_mesh("dtype")
    adapter_rank: int = of_mesh("adapter_rank")
    heartbeat_s: Seconds = 0.5
    """How often it says that it lives."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Of tasks that name none."""
    max_tokens: Count = of_mesh("max_tokens")
    chat_template_options: TemplateOptions = of_mesh("chat_template_options")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    cpu_kvcache_gib: Annotated[float, Field(gt=0, le=1 << 20, allow_inf_nan=False)] = 1.0
    """Most room for the KV cache on a CPU, GiB; less is taken where the longest sequences need less."""
    max_num_seqs: Size = 256
    """Sequences that the engine computes at once; the others wait."""
    caches: Literal["recomputed", "kept"] = "recomputed"
    """What becomes of the keys and values of responses under way when the engine takes a version. ``recomputed``: they
    are computed anew, so that every token is of one version alone. ``kept``: they stay, which costs nothing; what is
    drawn from then on is of the new weights over what the old ones have cached, as its log-probabilities are. A new
    request finds nothing of an older version in either case. A server of ``engine_url`` ends its responses first."""
    capture_routes: bool = False
    """Record which experts the engine's routers chose for each token (``routes`` of experiences), for
    ``trainer.router_replay``: layers times experts per token bytes for each token. Its own engine on GPUs alone, and
    models with 256 experts a layer at most."""
    cpu_threads: Count = 1
    """Threads of the engine's arithmetic on a CPU."""
    cpu_cores: Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")] | None = None
    """Cores that the engine may run on, such as ``0`` or ``0-3,8``; each of several engines its own. Unset: all."""
    engine_options: Options = Field(default={})
    """Any other arguments of its own engine, vLLM's ``AsyncEngineArgs``, such as ``{block_size = 32,
    kv_cache_dtype = "fp8"}``; but for those that a setting here decides, and those that would break what the mesh
    promises, which are refused with the reason."""
    quantization: Literal["fp8"] | None = None
    """As what its own engine computes with the weights, which it makes of each version as it comes; for GPUs that
    multiply in it. The trainer sees the difference as ``mismatch_k3``. Unset: ``dtype``. Not yet run."""
    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the model."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory that the engine takes."""
    compilation: Literal["auto", "on", "off"] = "auto"
    """Whether the engine compiles the model: slower to start, faster to run. ``auto``: on GPUs."""
    start_method: Literal["auto", "fork", "spawn"] = "auto"
    """How the engine's process starts. ``fork`` saves an import and computes with one thread. ``auto``: ``fork`` on
    a CPU with one thread."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """Of what is drawn: each request is seeded from it, its task and its run, whichever explorer with this seed serves
    it. A task's own seed counts more. Unset: another at each start."""
    start_timeout_s: Seconds = 600.0
    """Limit of starting the engine."""
    drain_s: Seconds = 2.0
    """How long rollouts may still finish when the explorer is told to stop; what does not is given back, and begun
    again elsewhere. The process ends itself 30 s after that."""
    runners: Count = 1
    """Processes that run workflows. The slots are divided among them."""
    workflow_modules: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*$")] | None = None
    """Modules of yours that register workflows, separated by commas, such as ``my_tasks,my_package.games``: installed,
    in the working folder, or on ``PYTHONPATH``. They are imported once, before runners are forked, and start no
    threads. Unset: only the workflows that come with the project."""
    runner_python: Path | None = None
    """Python interpreter of an environment of yours that runners run in, such as ``/envs/games/bin/python``: what your
    workflows need may then disagree with what vLLM needs. It has ``trinity-bus[runner]`` of the explorer's version.
    Unset: the explorer's own."""
    runner_stuck_s: Seconds = 30.0
    """A runner that answers nothing for this long, because a workflow blocks it, is stopped and replaced."""
    cancel_grace_s: Seconds = 5.0
    """How long a workflow that is cancelled may take to let go, before its runner is stopped and replaced."""
    runner_max_attempts: Count | None = None
    """Attempts after which a runner is replaced, once they have ended, against what workflows leave behind. Unset:
    never."""
    runner_max_rss_mib: Count | None = None
    """Memory above which a runner takes no more attempts and is replaced, MiB; with twice as much it is killed. An idle
    one has about 120, most of it shared. Unset: any."""
    runner_report_s: Seconds = 1.0
    """How often the states of the runners are told."""
    runner_user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """User, by name or number, as which runners run; the explorer must be started as root. Unset: that of the explorer,
    and of root the user ``workflows`` where there is one, as in the images.
    Of another user, workflows reach none of the explorer's files and processes: see docs/workflows.md."""
    runner_environment: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(,[A-Za-z_]\w*)*$")] | None = None
    """Variables of the environment that runners are given beside the harmless ones, separated by commas, such as
    ``JUDGE_URL,JUDGE_KEY``. Workflow code can read them. Unset: none."""

    http_port: Port | None = None
    """Port at which it answers gateways; 0: any that is free. Unset: it answers none."""
    http_host: HostName = "127.0.0.1"
    """Name or address under which gateways reach it, and at which it listens. ``{host}`` in it is the host's name."""
    http_key: SecretStr | None = None
    """What gateways, and explorers that ask this one's pool, show to be answered: they have the same; 16 characters or
    more. Whoever has it can draw from the engine."""
    auxiliary_pools: Annotated[str, Field(pattern=rf"^{_POOL}(,{_POOL})*$")] | None = None
    """Pools whose explorers workflows may ask beside their own, separated by commas, such as ``judge,teacher``. Those
    have ``http_port``, and all have the same ``http_key``. Unset: none."""
    auxiliary_wait_s: Seconds = 60.0
    """How long such a request waits for an explorer of the pool when there is none."""
    auxiliary_timeout_s: Seconds = 300.0
    """How long an answer to it may take, waiting included."""

    @property
    def is_in_own_pool(self) -> bool:
        """Whether it answers the tasks of the model that is trained."""
        return self.pool in (None, self.model)

    @property
    def serves_adapter(self) -> bool:
        """Whether versions are adapters, beside the weights that it starts with."""
        return self.adapter_rank > 0 and self.follows != "none"

    @property
    def served_model(self) -> str:
        """Return what the model is called that it serves: a checkpoint for a pool by the name of the pool."""
        return self.pool if self.pool is not None and self.follows == "none" else self.model

    @property
    def first_version(self) -> int:
        """Return which version it has before any is announced; -1 for none that is known."""
        if self.follows != "none":
            return -1
        return self.fixed_version if self.fixed_version is not None else 0 if self.is_in_own_pool else -1

    @field_validator("engine_options")
    @classmethod
    def _keeps_promises(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        allowed_options(value, REFUSED_ENGINE_OPTIONS)
        return value

    @field_validator("runner_environment")
    @classmethod
    def _spares_secrets(cls, value: str | None) -> str | None:
        ours = [name for name in (value or "").split(",") if name.upper().startswith(ENV_PREFIX)]
        if ours:
            raise PydanticCustomError("ours", "workflows may not have {name}", {"name": ours[0]})
        return value
