"""Starting vLLM: its configuration, its environment, and one import instead of two.

Most of a start on a CPU is importing: vLLM and torch take about 13 s of a core, and vLLM's way on CPUs, ``spawn``, pays
that in the front end, again in the engine core, and once more in a worker process. Here the worker lives in the engine
core (one process less to talk through), and the engine core is *forked* from the front end, which has imported
everything and computed nothing. That is safe as long as the child never waits for threads of an OpenMP team that only
its parent has: it computes with one thread, or its parent always has. Else ``auto`` leaves the choice to vLLM. Eager
execution and a KV cache of a given size leave nothing to warm up, and without torch's compiler the first request does
not wait for a helper of the sampler to be compiled (3 s).
"""

import contextlib
import importlib
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.groups.column import MAX_ROUTED_EXPERTS
from trinity_bus.config import ExplorerSettings, Settings, required
from trinity_bus.config.mesh import computed_dtype
from trinity_bus.config.values import unknown_options
from trinity_bus.errors import ConfigError
from trinity_bus.inference.errors import EngineStartError
from trinity_bus.inference.sampling import MOST_KEPT
from trinity_bus.runtime.device import can_compile, is_installed_for_cpu
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.process import how_ended
from trinity_bus.sizing.memory import GIB, cpu_cache_bytes
from trinity_bus.weights.vllm import plugin

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    from trinity_bus.inference.tracing import TokenCounter

_FRONT_END = ("vllm.v1.engine.async_llm", "vllm.v1.executor")  # what this process itself needs of vLLM
# What a start imports of vLLM, some of it only as it goes on.
_IMPORTS = (
    *_FRONT_END,
    "transformers.models.qwen3.configuration_qwen3",
    # Loading a model asks whether it is quantized on the way: a quarter of an engine's start.
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
)
_MEETING = "VLLM_RPC_BASE_PATH"  # where vLLM's processes have the sockets by which they speak to each other
_CPU_WORKER = "vllm.v1.worker.cpu_worker"
_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"  # by which a user has vLLM go beyond a model's positions
_NO_COMPILER = ". There is no C compiler, or no Python.h: Triton builds with them while an engine runs"
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM has room for adapters of
_IN_PIECES = "there a prompt that is computed in pieces, of a request with a seed, ends the engine"
# Arguments of the engine that are not passed through where it computes on CPUs, and why
_NOT_ON_CPUS = {
    "kv_cache_memory_bytes": "set explorer.cpu_kvcache_gib",
    "enable_chunked_prefill": _IN_PIECES,
    "long_prefill_token_threshold": _IN_PIECES,
    "max_num_scheduled_tokens": "there no prompt is computed in pieces, and one that is longer would wait for ever",
    "enable_expert_parallel": "there vLLM's kernel knows only experts of its own rank, and ends the engine",
}
_CRASHES = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT)
# where vLLM tells the exit code of an engine core that has ended while it started
_FAILED = re.compile(r"Failed core proc\(s\): \{'\w+': (-?\d+)")


def prepare_environment(settings: ExplorerSettings) -> None:
    """Set the variables that vLLM and OpenMP read when they are imported. What the user has set stays."""
    defaults = {
        # Nothing is reported to vLLM's makers.
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_PLUGINS": "trinity_bus_weights",
        # Otherwise vLLM takes all cores of a memory node for each engine; ``cpu_cores`` says which it may have.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.cpu_threads),
        # An OTLP endpoint in the environment makes vLLM's processes export spans of their own; its default is gRPC.
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        # The tokenizer's threads would not survive the fork, and it says so at length.
        "TOKENIZERS_PARALLELISM": "false",
        # The import of vLLM's quantized kernels for GPUs else starts two processes, which import torch to build what
        # may be needed, and a thread to wait for each. What is needed is built then.
        "HUMMING_DISABLE_PARALLEL_BUILD": "1",
    }
    if settings.tensor_parallel_size == 1 and is_installed_for_cpu():
        # The engine core is a process of its own in any case; this keeps the worker inside it, as it is on a GPU.
        defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if settings.model_path is not None and Path(settings.model_path).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if "cpu_threads" in settings.model_fields_set:
        # Who starts services has them begin with one thread each, in the environment.
        os.environ["OMP_NUM_THREADS"] = defaults["OMP_NUM_THREADS"]


@contextlib.contextmanager
def private_sockets() -> Iterator[None]:
    """Have vLLM's processes meet in a folder that only this user may enter, and that is gone afterwards."""
    # Otherwise they meet in the folder of everybody's temporary files, where each engine that is killed leaves its
    # sockets for good. What the user has set stays.
    if _MEETING in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="trinity-bus-") as folder:
        os.environ[_MEETING] = folder
        try:
            yield
        finally:
            del os.environ[_MEETING]


def check_model(settings: ExplorerSettings) -> None:
    """Look at the model's folder before vLLM is imported, which takes long, and says it in its own terms.

    How far positions can be stretched (RoPE scaling) is for vLLM to say. ConfigError: there is no model in the
    folder, or it has fewer positions than sequences are to have.
    """
    folder = Path(required(settings.model_path, "mesh.model_path", "to start the inference engine"))
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError:
        raise ConfigError(f"{path} does not exist: give mesh.model_path the folder of a Hugging Face model") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    text = config.get("text_config", config) if isinstance(config, dict) else None
    if not isinstance(text, dict):
        raise ConfigError(f"{path} is not the configuration of a model")
    positions, rope = text.get("max_position_embeddings"), (text.get("rope_scaling"), text.get("rope_parameters"))
    if not isinstance(positions, int) or '"factor"' in json.dumps(rope) or _LONGER in os.environ:
        return
    if positions < settings.max_model_len:
        raise ConfigError(
            f"mesh.max_model_len is {settings.max_model_len}, and the model in {folder} has {positions} positions: "
            f"lower mesh.max_model_len to {positions}, and mesh.max_tokens below it"
        )


def preload() -> None:
    """Import all that an explorer needs, so that several can be forked from this process: see ``runtime.preload``."""
    prepare_environment(Settings().explorer)
    _import_torch()
    for module in _IMPORTS:
        importlib.import_module(module)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        importlib.import_module(_CPU_WORKER)


def parse_cores(text: str) -> set[int]:
    """Return the core numbers of a list such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def import_vllm(settings: ExplorerSettings) -> None:
    """Import most of what a start needs of vLLM. Call it from a thread; it takes seconds the first time."""
    prepare_environment(settings)
    try:
        with importing():
            _import_torch()
            for module in _FRONT_END:
                importlib.import_module(module)
    except ImportError as error:
        raise EngineStartError(
            f"vLLM cannot be imported ({error}); install the extra explorer-cpu or explorer-gpu"
        ) from error


def _import_torch() -> None:
    # Where nothing has imported it yet, this process never has a team of threads, so an engine can be forked from it.
    if "torch" not in sys.modules and is_installed_for_cpu():
        import torch

        torch.set_num_threads(1)


def launch(settings: ExplorerSettings, counter: "TokenCounter", abandoned: threading.Event) -> "AsyncLLM":
    """Start an engine, unless nobody wants it any more (``abandoned``). Call it from a thread: it takes its time."""
    model_path = required(settings.model_path, "mesh.model_path", "to start the inference engine")
    import_vllm(settings)
    # What an optional part of vLLM's imports lacks is kept there for good, as an error with all frames that have led to
    # its import, and what these hold: so the engine is held by no frame from which anything is imported.
    return _launched(settings, model_path, counter, abandoned)


def _launched(
    settings: ExplorerSettings, model_path: str, counter: "TokenCounter", abandoned: threading.Event
) -> "AsyncLLM":
    from vllm.envs import disable_envs_cache
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor import Executor

    # An engine before this one, in this process, may have left what it read.
    disable_envs_cache()
    config = None
    try:
        config = _configuration(settings, model_path)
        with _pinned(settings.cpu_cores), _starting(_start_method(settings.cpu_threads, config), settings.cpu_threads):
            _go_on_unless(abandoned)
            llm = AsyncLLM(
                config,
                Executor.get_class(config),
                log_stats=False,
                log_requests=False,
                stat_loggers=[counter],
            )
            _spare_front_end(llm)
            _note_kept(config.model_config.get_vocab_size())
            return llm
    # vLLM raises anything from a model's own ValueError to a bare Exception of its child process.
    except Exception as error:
        failed = _FAILED.search(str(error))
        why = "" if failed is None else cause_of_death([int(failed[1])], config)
        if not (is_installed_for_cpu() or can_compile()):
            why += _NO_COMPILER
        raise EngineStartError(f"vLLM cannot start with model {model_path}: {error}{why}") from error


def cause_of_death(codes: Iterable[int], config: "VllmConfig | None") -> str:
    """Return why an engine has ended, by the exit codes of its processes, and what to do about it."""
    if not (found := [code for code in codes if code]):
        return ""
    code = min(found)
    advice = ""
    if -code == signal.SIGKILL:
        advice = "; if nobody did that, memory was short: lower explorer.max_num_seqs or explorer.cpu_kvcache_gib"
    elif -code in _CRASHES and config is not None and config.device_config.device_type == "cpu":
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        if dtype != "float32":
            advice = f"; vLLM's {dtype} on CPUs does so on some processors: there, set mesh.dtype to float32"
    return f": it {how_ended(code)}{advice}"


def _spare_front_end(llm: "AsyncLLM") -> None:
    # Beside a logger of one's own vLLM keeps its metrics for Prometheus, which are offered nowhere; and it looks into
    # the environment for each token until it is told, as it tells its engine core itself, that variables stay as they
    # are.
    from vllm.envs import enable_envs_cache
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    manager = llm.logger_manager
    if manager is not None:
        manager.stat_loggers = [
            logger for logger in manager.stat_loggers if not isinstance(logger, PrometheusStatLogger)
        ]
    enable_envs_cache()


def _note_kept(vocabulary: int) -> None:
    # vLLM makes numbers of Python of all that is told beside a drawn token, and holds 133 bytes of each until the
    # response ends. What was kept to be drawn from is held as an array here, in the place of a text that nobody reads.
    from vllm.v1.engine.logprobs import LogprobsProcessor

    def note(self: Any, told: Any) -> None:
        most = self.num_logprobs
        asked = slice(1, 1 + most)
        for ids, logprobs in zip(told.logprob_token_ids, told.logprobs, strict=True):
            # The drawn token comes first, and once more among those that have a probability.
            is_kept = logprobs[asked] > -np.inf
            # With as many as were asked about there may be others, unless there are no more: that is of no use.
            known = most == vocabulary or np.count_nonzero(is_kept) < most
            kept = np.sort(ids[asked][is_kept & known]).astype(np.int32) if most else None
            self.logprobs.append_fast(ids[:1].tolist(), logprobs[:1].tolist(), [None], [kept])

    LogprobsProcessor._update_sample_logprobs = note  # noqa: SLF001 (there is no other way)


def _go_on_unless(abandoned: threading.Event) -> None:
    if abandoned.is_set():
        raise EngineStartError("the start was abandoned")


def _configuration(settings: ExplorerSettings, model_path: str) -> "VllmConfig":
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    on_cpu = current_platform.is_cpu()
    if settings.capture_routes and on_cpu:
        raise EngineStartError(
            "explorer.capture_routes is set: vLLM tells routes where its second model runner runs, which needs Triton, "
            "and so a GPU"
        )
    # Who follows the trainer computes in its type; what is served for good, in its own, but for CPUs.
    free = settings.follows == "none" and not on_cpu
    eager = settings.compilation == "off" or (settings.compilation == "auto" and on_cpu)
    arguments: dict[str, Any] = {
        "model": model_path,
        "dtype": settings.dtype if free else computed_dtype(settings.dtype, on_cpu=on_cpu),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "quantization": settings.quantization,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": eager,
        # Of the distribution that the token is drawn from: after temperature, top-p and top-k. The default is before.
        "logprobs_mode": "processed_logprobs",
        # What was not kept to be drawn from is told by that, too: its probability is 0.
        "max_logprobs": MOST_KEPT,
        "weight_transfer_config": {"backend": plugin.BACKEND},
        "worker_extension_cls": "trinity_bus.weights.vllm.engine.WorkerExtension",
        # What a checkpoint's generation_config.json recommends would silently change the sampling distribution.
        "generation_config": "vllm",
        # vLLM's default is the same for every engine: two explorers would draw the same numbers.
        "seed": secrets.randbits(31) if settings.seed is None else settings.seed,
        "disable_log_stats": True,
        "enable_return_routed_experts": settings.capture_routes,
    }
    if settings.serves_adapter:
        arguments |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next(rank for rank in _LORA_RANKS if rank >= settings.adapter_rank),
            "lora_target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        }
    if on_cpu:
        arguments["kv_cache_memory_bytes"] = int(settings.cpu_kvcache_gib * GIB)  # until the model is known
    else:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    _add_options(arguments, settings, [field.name for field in fields(AsyncEngineArgs)], on_cpu=on_cpu)
    if on_cpu:
        # What samples of a prompt, and turns, share is found by whole blocks, which have 128 tokens on CPUs unless told
        # otherwise: 128 samples of 16 prompts of 41 tokens took 2.2 s in place of 4.7.
        arguments.setdefault("block_size", 32)
    if eager and on_cpu:
        _disable_compiler()
    if on_cpu:
        _inspect_here(Path(model_path))
    # A server: without that, vLLM computes 2,048 tokens a step where it would compute 8,192 on an H100.
    config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    if settings.capture_routes and (experts := config.model_config.get_num_experts()) > MAX_ROUTED_EXPERTS:
        raise EngineStartError(
            f"explorer.capture_routes is set: this model has {experts} experts, and routes can name no more than "
            f"{MAX_ROUTED_EXPERTS}"
        )
    if on_cpu:
        config.cache_config.kv_cache_memory_bytes = cpu_cache_bytes(settings, _cached_bytes(config))
        # vLLM takes the draw of all pieces of a prompt but the last back by the generator's offset, which those of CPUs
        # do not have.
        scheduler = config.scheduler_config
        scheduler.enable_chunked_prefill = False
        scheduler.max_num_batched_tokens = max(scheduler.max_num_batched_tokens, config.model_config.max_model_len)
    return config


def _add_options(
    arguments: dict[str, Any], settings: ExplorerSettings, known: Collection[str], *, on_cpu: bool
) -> None:
    options = settings.engine_options
    if (wrong := unknown_options(options, known)) is not None:
        raise EngineStartError(f"explorer.engine_options: {wrong}, as an argument of vLLM's engine")
    if on_cpu and (found := next((name for name in _NOT_ON_CPUS if name in options), None)) is not None:
        raise EngineStartError(f"explorer.engine_options: {found} cannot be set on a CPU: {_NOT_ON_CPUS[found]}")
    arguments |= options


def _inspect_here(model: Path) -> None:
    # vLLM would import itself in another process, so that CUDA is not initialized here, and remember what it finds in
    # its cache folder, which a container begins without.
    from vllm import ModelRegistry

    try:
        names = json.loads((model / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError):
        # No folder of a model; vLLM says what it is, or what is wrong.
        return
    for name in names:
        if (registered := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, registered.load_model_cls())


def _disable_compiler() -> None:
    # In this process and in those that it forks or spawns.
    import torch._dynamo.config

    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch._dynamo.config.disable = True  # noqa: SLF001 (the setting's documented place)


def _cached_bytes(config: "VllmConfig") -> int:
    # Of a token's keys and values: 2 x layers x KV heads x head size x bytes per element.
    model, parallel = config.model_config, config.parallel_config
    size = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel) * model.get_head_size()
    return int(size * model.dtype.itemsize)


def _start_method(cpu_threads: int, config: "VllmConfig") -> str | None:
    # ``fork``, which saves an import and memory, where the service computes with one thread; None: vLLM chooses.
    import torch

    on_cpu = config.device_config.device_type == "cpu"
    has_no_team = 1 in {cpu_threads, torch.get_num_threads()}
    return "fork" if on_cpu and has_no_team and sys.platform == "linux" else None


@contextlib.contextmanager
def _starting(method: str | None, cpu_threads: int) -> Iterator[None]:
    import torch
    import vllm.plugins

    # A forked process inherits "plugins are loaded", and ours has work to do in it. vLLM's own choice may be to fork.
    vllm.plugins.plugins_loaded = False
    plugin.forked_threads = cpu_threads if method == "fork" else None
    if method is None:
        yield
        return
    # vLLM overwrites the variable when it makes a configuration for a CPU, and reads it when it starts processes.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
    threads = torch.get_num_threads()
    if method == "fork":
        # Whoever has imported torch before ``OMP_NUM_THREADS`` was set has a thread for each core.
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        # Python warns of forking beside threads: a lock that one of them holds stays locked in the child. Those of
        # logging, imports and memory are reset by their owners, and the child uses nothing else that this process runs.
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def _pinned(cores: str | None) -> Iterator[None]:
    # Binds this thread, and with it the processes that it starts, to cores; they keep it, this thread does not.
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, parse_cores(cores))
    except OSError as error:
        raise EngineStartError(f"cannot bind the engine to cores {cores}; this process may use {before}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
