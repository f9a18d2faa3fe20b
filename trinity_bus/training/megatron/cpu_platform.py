"""What Megatron-core 0.16 needs to run on a CPU with gloo, and nothing else.

Megatron-core assumes CUDA in three ways:

* it calls ``torch.cuda`` (``current_device``, streams);
* it creates tensors with a literal ``device="cuda"`` or with a CUDA device;
* it asserts tensor types by name, such as ``"torch.cuda.FloatTensor"``.

The first two go through the global name ``torch`` of each Megatron module. So Megatron's modules, and only they, get a
*view* of torch in its place: the same module, except that the functions in :data:`CUDA_CALLS` and the factories in
:data:`FACTORIES` mean the CPU. torch itself stays as it is for the rest of the process. The third is a method of
tensors and is answered for the length of the one call that asks (:data:`TYPE_ASSERTIONS`).

Where CUDA is there, :func:`prepare` only imports, and defines a name that Megatron forgets (:data:`UNDEFINED`). Each
entry of the tables is needed: a test takes one away at a time and sees training fail. What only a pipeline of several
stages needs (:data:`PIPELINE_CUDA_CALLS`, :data:`TIED`) is exercised by training on two ranks.
"""

import contextlib
import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from trinity_bus.runtime.device import uses_gpu
from trinity_bus.runtime.memory import importing

type Calls = dict[str, Callable[..., Any]]

CPU: Final = torch.device("cpu")
_TYPE: Final = torch.Tensor.type

# By its name in ``torch.cuda``. Gradient buffers of DistributedDataParallel are allocated on it.
CUDA_CALLS: Final[Calls] = {"current_device": lambda: CPU}
# What several stages alone call: they wait for the device after they have exchanged shapes and tensors.
PIPELINE_CUDA_CALLS: Final[Calls] = {"synchronize": lambda: None}
# What the dispatcher of tokens to experts alone makes, to copy counts to the host on
EXPERT_CUDA_CALLS: Final[Calls] = {"Stream": lambda: None}

# Copies counts of tokens to the host, on streams and as numpy's numbers; here they are there, and tensors still.
COUNTS: Final = (
    "megatron.core.transformer.moe.token_dispatcher",
    "MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize",
)

# A name that the router compares with None, and that Megatron 0.16 defines only where Transformer Engine is there.
UNDEFINED: Final = ("megatron.core.transformer.moe.moe_utils", "te_general_gemm")

# Tensor factories that Megatron calls with a CUDA device: FP32Optimizer for its loss scale, the pipeline schedule to
# count tokens, and gradient clipping to count its overflows
FACTORIES: Final = ("tensor", "zeros")

# Which function of a module asserts that gradients, and weights that it shards, are of type "torch.cuda.FloatTensor"
TYPE_ASSERTIONS: Final = {
    "megatron.core.optimizer.optimizer": "clip_grad_by_total_norm_fp32",
    "megatron.core.optimizer.distrib_optimizer": "DistributedOptimizer._build_model_and_main_param_groups",
}

# Save and restore CUDA's generator, which does not exist here, around layers whose activations are computed again. The
# second queues a call for when there is CUDA, at each such layer, for ever.
RANDOM: Final = "megatron.core.tensor_parallel.random"
RANDOM_CALLS: Final[Calls] = {"_get_cuda_rng_state": lambda **_: None, "_set_cuda_rng_state": lambda *_, **__: None}

# Where the output layer is the embedding and the two are on different stages, Megatron calls Tensor.cuda() on the copy
# before it adds both up. Within that one method it returns the tensor as it is.
TIED: Final = (
    "megatron.core.models.common.language_module.language_module",
    "LanguageModule.setup_embeddings_and_output_layer",
)

# Megatron's inference imports it where it can, and its import asks the GPU for its properties. That takes 20 s, and a
# process that is forked afterwards cannot use CUDA. Training has no use for it.
_BEGINS_CUDA: Final = "flashinfer"

_MODULES: Final = (
    "megatron.core.distributed",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel.schedules",
)

_IMPORT_WARNINGS: Final = (
    # Neither is a fault: both libraries are optional and the plain torch path is the one that is tested.
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    # About Megatron's own use of older names.
    "The 'megatron.core.transformer.custom_layers.transformer_engine'",
    "The following imports from `dynamic_context.py` will be removed",
    "`torch.jit.script",
)


class _TorchView(types.ModuleType):
    # Attributes are copied, so a look-up costs what it costs on torch

    def __init__(self) -> None:
        super().__init__("torch", "torch, where CUDA means the CPU")
        dunders = {"__name__", "__doc__", "__loader__", "__spec__", "__class__"}
        self.__dict__.update({k: v for k, v in vars(torch).items() if k not in dunders})
        self.cuda = types.ModuleType("torch.cuda", "torch.cuda, where CUDA means the CPU")
        vars(self.cuda).update({k: v for k, v in vars(torch.cuda).items() if not k.startswith("__")})
        for name, meaning in (CUDA_CALLS | PIPELINE_CUDA_CALLS | EXPERT_CUDA_CALLS).items():
            setattr(self.cuda, name, meaning)
        for name in FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        # Submodules that torch loads on first use
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        return factory(*args, **kwargs)

    return wrapped


def _while_tensors(name: str, method: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # Not re-entrant, nor is who is called so.

    def replaced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            setattr(torch.Tensor, name, method)
            try:
                return function(*args, **kwargs)
            finally:
                delattr(torch.Tensor, name)  # inherited from TensorBase again

        return wrapped

    return replaced


def _cuda_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    # The name of the CUDA type of a tensor on the CPU
    answer = _TYPE(tensor, *args, **kwargs)
    return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer


def _counts_are_here(function: Callable[..., Any]) -> Callable[..., Any]:
    # See COUNTS

    @functools.wraps(function)
    def wrapped(dispatcher: Any, _point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            if isinstance(counts := getattr(dispatcher, name), torch.Tensor):
                setattr(dispatcher, name, counts.numpy())
        return tokens_per_expert

    return wrapped


@contextlib.contextmanager
def _no_compilation() -> Iterator[None]:
    # Megatron decorates functions with torch.compile while it is imported. On a CPU that imports the compiler (half of
    # the import time) and runs a C++ compiler in the first step, so the decorator returns the function as it is.

    def compile_nothing(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return function if function is not None else compile_nothing

    genuine, torch.compile = torch.compile, compile_nothing
    try:
        yield
    finally:
        torch.compile = genuine


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # as ``import`` documents it
    try:
        yield
    finally:
        del sys.modules[module]


def on_cpu() -> bool:
    return not uses_gpu()


def replace_function(module: str, path: str, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    *classes, name = path.split(".")
    owner = functools.reduce(getattr, classes, sys.modules[module])
    found = vars(owner)[name]
    if isinstance(found, staticmethod | classmethod):
        setattr(owner, name, type(found)(replacement(found.__func__)))
    else:
        setattr(owner, name, replacement(found))


@functools.cache
def prepare() -> _TorchView | None:
    """Import Megatron-core and, where there is no CUDA device, fit it to the CPU. Later calls do nothing."""
    with warnings.catch_warnings(), importing():
        for message in _IMPORT_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        with _without(_BEGINS_CUDA), _no_compilation() if on_cpu() else contextlib.nullcontext():
            for name in _MODULES:
                importlib.import_module(name)
    vars(sys.modules[UNDEFINED[0]]).setdefault(UNDEFINED[1], None)
    if not on_cpu():
        return None
    view = _TorchView()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and vars(module).get("torch") is torch:
            module.torch = view  # type: ignore[attr-defined]  # a module's globals are open
    for module_name, path in TYPE_ASSERTIONS.items():
        replace_function(module_name, path, _while_tensors("type", _cuda_type))
    replace_function(*COUNTS, _counts_are_here)
    for path, meaning in RANDOM_CALLS.items():
        replace_function(RANDOM, path, functools.partial(functools.update_wrapper, meaning))
    replace_function(*TIED, _while_tensors("cuda", lambda tensor: tensor))
    return view
