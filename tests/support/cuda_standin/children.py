"""What a rehearsal runs on the stand-in: one function a process, which tells what it has found as a line of JSON.

    python -m tests.support.cuda_standin.children FUNCTION [WORD...]

Numbers are nonsense here, so norms and losses are taken for finite.
"""

import asyncio
import functools
import importlib
import json
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def device() -> None:
    """Where things would be computed."""
    import torch

    from trinity_bus.runtime.device import uses_gpu
    from trinity_bus.training.megatron.cpu_platform import on_cpu

    tell(uses_gpu=uses_gpu(), on_cpu=on_cpu(), torch=torch.cuda.is_available())


def forked() -> None:
    """Can a trainer that is forked from the demo's preload use CUDA?"""
    import torch

    # As its own import does on a GPU.
    sys.meta_path.insert(0, _Greedy())
    for module in ("trinity_bus.training.engines.megatron_engine", "workers.trainer.service"):
        importlib.import_module(module)
    begun = torch.cuda.is_initialized()
    if os.fork() == 0:
        try:
            torch.zeros(1, device="cuda")
            tell(begun=begun, child="ok")
        except RuntimeError as error:
            tell(begun=begun, child=str(error))
        os._exit(0)
    os.wait()


def preloaded() -> None:
    """What runs in the preload that explorers are forked from, when all is imported."""
    import psutil

    from trinity_bus.inference import launch

    launch.preload()
    import torch

    import workers.explorer.service  # noqa: F401

    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    tell(children=children, threads=threads, begun=torch.cuda.is_initialized())


class _Greedy:
    """Finds a ``flashinfer`` whose import begins CUDA, installed or not."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "flashinfer":
            import torch

            torch.cuda.init()


def _options(words: Sequence[str]) -> dict[str, Any]:
    def read(value: str) -> object:
        return json.loads(value) if value in {"true", "false"} or value.replace(".", "").isdigit() else value

    return {name: read(value) for name, given, value in (word.partition("=") for word in words) if given}


def _load(folder: Path, words: Sequence[str]) -> tuple[Any, Any]:
    from benchmarks import training
    from benchmarks._gpu.sizes import SIZES

    load = SIZES["tiny"].training
    model = training.make_model(load, folder)
    settings = training.settings_of(load, model).model_copy(update={"dtype": "bfloat16", **_options(words)})
    return settings, training.make_groups(load)


def _steps(engine: Any, inner: Any, groups: Any, **facts: object) -> None:
    """Train, export, save and load."""
    import torch

    optimizer = inner._optimizer._megatron
    norm = optimizer.get_grad_norm
    # Other ranks take part in it.
    optimizer.get_grad_norm = lambda: (norm(), 1.0)[1]
    math.isfinite = lambda _: True
    engine.train_step(groups)
    tensors = [str(tensor.device) for _, tensor in engine.hf_tensors()]
    with tempfile.TemporaryDirectory() as folder:
        engine.save_checkpoint(Path(folder), engine.progress).result()
        # Kernels compute nothing: the weights are whatever was in memory.
        torch.isfinite = lambda _: True
        step = engine.load_latest(Path(folder)).step
    engine.leave()
    tell(tensors=len(tensors), devices=sorted(set(tensors)), loaded=step, **facts)


def trainer(*words: str) -> None:
    import torch

    from trinity_bus.training.engines.megatron_engine import MegatronEngine

    seen: list[str] = []
    of = MegatronEngine.token_logprobs

    def noting(self: Any, hidden: torch.Tensor, arrays: Any) -> Any:
        seen[:] = [str(hidden.dtype)]
        return of(self, hidden, arrays)

    MegatronEngine.token_logprobs = noting  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        settings, groups = _load(Path(folder), words)
        engine = MegatronEngine(settings)
        group = engine._optimizer._megatron.param_groups[0]
        facts = {"device": str(engine.layout.device), "dtype": str(engine.dtype), "fused": bool(group.get("fused"))}
        _steps(engine, engine, groups, hidden=seen, **facts)


def saved(folder: str) -> None:
    """A checkpoint of a trainer in float32, before its first step."""
    _engine_at(folder).save_checkpoint(Path(folder), _engine_at(folder).progress).result()


def resumed(folder: str) -> None:
    """A trainer goes on with what ``saved`` has left."""
    engine = _engine_at(folder)
    tell(device=engine.device_type, step=engine.load_latest(Path(folder)).step)


@functools.cache
def _engine_at(folder: str) -> Any:
    from trinity_bus.training.engines.megatron_engine import MegatronEngine

    return MegatronEngine(_load(Path(folder), ["dtype=float32"])[0])


def experts() -> None:
    """A layer's experts, forwards and back, in bfloat16: what torch's grouped kernels want of shapes and strides."""
    import torch

    from trinity_bus.training.megatron.layers import multiply

    rows = torch.zeros(24, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    weights = torch.zeros(4, 96, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    product = multiply(rows, weights, torch.tensor([8, 8, 23, 24], dtype=torch.int32).to("cuda"))
    product.sum().backward()
    found = {"product": product, "rows": rows.grad, "weights": weights.grad}
    tell(**{name: [str(tensor.device), list(tensor.shape)] for name, tensor in found.items()})


def ranks(*words: str) -> None:
    """Several ranks as children, over NCCL."""
    from trinity_bus.training.ranks.followers import ChildRanks, Followers
    from trinity_bus.training.ranks.multi_rank_engine import MultiRankEngine

    with tempfile.TemporaryDirectory() as folder:
        settings, groups = _load(Path(folder), words)
        engine = MultiRankEngine(settings, Followers(settings.ranks, ChildRanks()))
        _steps(engine, engine._engine, groups)


def late() -> None:
    """A link's broadcast is late, beside a world of the process's own: does the process live on?"""
    hang = os.environ["FAKE_HANG"] = str(Path(tempfile.mkdtemp()) / "hang")
    # In place of eight minutes and a minute.
    os.environ |= {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "4", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "200"}
    import torch
    import torch.distributed as dist

    from trinity_bus.runtime.device import host_buffer, shared_memory
    from trinity_bus.weights import link as links
    from trinity_bus.weights.channel import Channel
    from trinity_bus.weights.errors import LinkError

    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.zeros(4, device="cuda"))
    store = dist.HashStore()
    threading.Thread(target=lambda: links._meet(store, 1, timedelta(seconds=5)), daemon=True).start()
    group = links.nccl_group(store, 0, timedelta(seconds=1))
    ours, other_end = socket.socketpair()
    link = links.Link(Channel(ours, timeout_s=5, cancelled=threading.Event()), "nccl", 0)
    link.use(_Noting(group), 5)
    config = group.options.config
    os.truncate(file := os.memfd_create("weights"), 8)
    memories = [host_buffer(8), shared_memory(file, 8)[1]]
    tell(blocks_while_made=config.blocking, most_blocks=config.max_ctas, pinned=[m.is_pinned() for m in memories])
    piece = torch.zeros(8, dtype=torch.uint8)
    link.broadcast(piece)
    link.wait(5)
    Path(hang).touch()
    try:
        link.broadcast(piece)
        link.wait(3)
    except LinkError as error:
        tell(error=str(error))
    Path(hang).unlink()
    link.close()
    other_end.close()
    # As long as the watchdog of a group that is watched would take to end the process: two of its limits, and a dump.
    time.sleep(14)
    tell(alive=True, own_stream=_Noting.own_stream)
    os._exit(0)


class _Noting:
    """A group, and whether its broadcasts were begun on another stream than the process computes on."""

    own_stream: ClassVar[list[bool]] = []

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        import torch

        self.own_stream.append(torch.cuda.current_stream() != torch.cuda.default_stream())
        return self._group.broadcast(tensors, options)


def chain() -> None:
    """A trainer and two members over NCCL's links: all bytes, twice."""
    import multiprocessing

    from benchmarks._records import announce
    from trinity_bus.weights.transport import source_of

    context = multiprocessing.get_context("fork")
    pipes = []
    for gpu in (1, 2):
        ours, theirs = context.Pipe()
        context.Process(target=_member, args=(theirs, gpu), daemon=True).start()
        ours.recv()
        pipes.append(ours)
    import torch

    from schemas import Member
    from trinity_bus.weights.pull.server import WeightServer

    torch.cuda.set_device(0)
    server = WeightServer("127.0.0.2", bucket_bytes=8 << 20, timeout_s=20, method="nccl")
    members = [Member(explorer=f"explorer-{n}", incarnation="life", rank=n) for n in (1, 2)]
    for version in (1, 2):
        weights = [(f"w{i}", torch.full((1 << 20,), float(10 * version + i)).cuda()) for i in range(16)]
        checksum = server.stage(version, weights)
        told = announce(version, checksum, server.address, "nccl", "explorer-1").model_copy(update={"members": members})
        server.admit(told)
        for member, pipe in zip(members, pipes, strict=True):
            pipe.send(source_of(told, member.explorer, 20))
        found = [pipe.recv() for pipe in pipes]
        tell(version=version, found=found, wanted=sum((10 * version + i) * (1 << 20) for i in range(16)))
    for pipe in pipes:
        pipe.send(None)
    server.close()
    os._exit(0)


def _member(pipe: Any, gpu: int) -> None:
    import torch

    from trinity_bus.weights.receiver import WeightReceiver

    receiver = WeightReceiver(device=torch.device("cuda", gpu))
    pipe.send("here")
    while (wanted := pipe.recv()) is not None:
        done = threading.Event()
        receiver.start(wanted, functools.partial(_set, done))
        done.wait(60)
        if receiver.progress.state == "ready":
            pipe.send([receiver.progress.error, sum(float(tensor.sum()) for _, tensor in receiver.take())])
        else:
            pipe.send([receiver.progress.error, 0.0])
            receiver.cancel()
    receiver.close()


def _set(done: threading.Event, _: object) -> None:
    done.set()


async def engine(*words: str) -> None:
    """An explorer's engine: starts, takes two versions by each of the methods named, and its front end is killed.

    With the word ``experts`` its model is a mixture of them.
    """
    import psutil
    from safetensors.torch import load_file

    from benchmarks._records import announce
    from trinity_bus.config import ExplorerSettings, SynchronizerSettings
    from trinity_bus.inference.engine import InferenceEngine
    from trinity_bus.inference.errors import EngineStartError
    from trinity_bus.weights.pull.server import WeightServer
    from workers.demo.model import make_model

    methods: list[Any] = [word for word in words if word in {"memory", "nccl"}]
    folder = Path(tempfile.mkdtemp())
    make_model(folder, 0)
    if "experts" in words:
        mix(folder)
    given = {"dtype": "bfloat16", "compilation": "off", "gpu_memory_utilization": 0.02, **_options(words)}
    sizes = {"max_model_len": 64, "max_num_seqs": 4, "seed": 0, "start_timeout_s": 540}
    own = ExplorerSettings(model_path=str(folder), **sizes, **given)
    served = InferenceEngine(own, SynchronizerSettings(sync_timeout_s=60))
    try:
        await served.start()
    except EngineStartError as error:
        tell(failed=str(error))
        return
    config = served.llm.vllm_config
    tell(device=config.device_config.device_type, second_runner=config.use_v2_model_runner)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    for version, method in enumerate((method for method in methods for _ in range(2)), 1):
        server = WeightServer(method=method, timeout_s=60)
        tensors = [(name, tensor * version) for name, tensor in weights.items()]
        if method == "nccl":
            tensors = [(name, tensor.cuda()) for name, tensor in tensors]
        checksum = await asyncio.to_thread(server.stage, version, tensors)
        told = announce(version, checksum, server.address, method, "explorer-0")
        server.admit(told)
        outcome = await served.sync_weights(told, told.members[0])
        tell(method=method, version=served.model_version, bytes=outcome.nbytes, wanted=outcome.checksum == checksum)
        server.close()
    mapped = [
        (process.pid, line.split()[4])
        for process in psutil.Process().children(recursive=True)
        for line in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
        if "memfd:weights" in line
    ]
    tell(memories=len({memory for _, memory in mapped}), mapped_by=len({pid for pid, _ in mapped}))
    os.kill(os.getpid(), signal.SIGKILL)


def mix(folder: Path, *, seed: int = 0, **sizes: float) -> None:
    """Put a mixture of experts in the place of a folder's model; its tokenizer stays."""
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    dense = AutoConfig.from_pretrained(folder)
    sizes |= {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 64, "num_experts": 8}
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(vocab_size=dense.vocab_size, num_experts_per_tok=2, norm_topk_prob=True, **sizes)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def demo(*arguments: str) -> None:
    from trinity_bus.runners import confinement

    # What services are forked from has no more of the environment than runners, and here its libraries come from there.
    confinement._NAMES |= {"LD_PRELOAD", "FAKE_GPUS", "TRITON_LIBCUDA_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK"}
    from workers.cli import app

    sys.argv[:] = ["trinity-bus", "demo", *arguments]
    app.main()


def configured() -> None:
    """What vLLM makes of the settings that the chart's sizes have, on the GPUs that NVML tells of."""
    from tests.support.chart import values, write_config
    from trinity_bus.config.sections import Sections
    from trinity_bus.inference.launch import _configuration, import_vllm

    for size in ("8-gpus", "64-gpus"):
        settings = Sections(**values(size)["settings"])
        folder = Path(tempfile.mkdtemp())
        write_config(str(settings.mesh.model_path), folder)
        explorer = settings.explorer.model_copy(update={"model_path": str(folder)})
        import_vllm(explorer)
        config = _configuration(explorer, str(folder))
        tell(
            size=size,
            dtype=str(config.model_config.dtype),
            tokens_a_step=config.scheduler_config.max_num_batched_tokens,
            sequences=config.scheduler_config.max_num_seqs,
            asynchronous=config.scheduler_config.async_scheduling,
            graphs=config.compilation_config.cudagraph_mode.name,
            prefixes=config.cache_config.enable_prefix_caching,
            share=config.cache_config.gpu_memory_utilization,
            tensor_parallel=config.parallel_config.tensor_parallel_size,
            second_runner=config.use_v2_model_runner,
        )


def imports() -> None:
    """What rehearsals of a trainer import, in the process that they are forked from."""
    import transformers  # noqa: F401

    import trinity_bus.training.engines.megatron_engine  # noqa: F401


def main() -> None:
    result = globals()[sys.argv[1]](*sys.argv[2:])
    if asyncio.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main()
