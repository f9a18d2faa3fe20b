"""GPUs as their makers describe them, and the layout of trainer and explorers that fits them. Pure.

Of the trainer's layouts the first that fits is taken: fewer tensor-parallel ranks come before more, and keeping
activations before computing them again. Where none fits, the one that needs the least is. Explorers take as few GPUs
each as the model needs, and there are as many of them as that leaves room for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trinity_bus.config.sections import Sections
from trinity_bus.sizing.memory import GIB, MemoryNeed, explorer_memory, trainer_memory
from trinity_bus.training import layout_rules
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import ModelShape


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_gib: float
    tflops: float  # 10^12 operations a second on dense bfloat16 matrices
    bandwidth_tb_s: float  # 10^12 bytes a second from its memory


# NVIDIA's data sheets: SXM modules where there are any, without sparsity
GPUS: Final = MappingProxyType(
    {
        "A100": Gpu(80, 312, 2.04),
        "H100": Gpu(80, 989, 3.35),
        "H200": Gpu(141, 989, 4.8),
        "B200": Gpu(180, 2250, 8.0),
        "L40S": Gpu(48, 362, 0.864),
    }
)

# Of the operations a second, in a training step. Narayanan et al., arXiv:2104.04473, table 1, reach 0.44 to 0.52.
TRAINING_SHARE: Final = 0.4
# Of the operations a second, where a batch of tokens is computed. Pope et al., arXiv:2211.05102, section 4, reach up
# to 0.76 for prompts, less where matrices are smaller.
PREFILL_SHARE: Final = 0.4
# Of the bytes a second, where one token is drawn for each sequence. Assumed: not measured on a GPU yet.
BANDWIDTH_SHARE: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of one machine. 0 of either: it computes on CPUs."""

    trainer_gpus: int = 0
    explorer_gpus: int = 0
    gpu_gib: float = 80.0  # Memory of each

    @property
    def trainer_bytes(self) -> int | None:
        return round(self.gpu_gib * GIB) if self.trainer_gpus else None

    @property
    def explorer_bytes(self) -> int | None:
        return round(self.gpu_gib * GIB) if self.explorer_gpus else None

    def explorers(self, settings: Sections) -> int:
        """Return how many explorers these GPUs are for; one on CPUs."""
        return max(1, self.explorer_gpus // settings.explorer.tensor_parallel_size)


def spread(shape: ModelShape, settings: Sections, hardware: Hardware) -> Mapping[str, object]:
    """Return the settings that spread a mesh over its GPUs, by their places. Empty where there are none."""
    return {**_trainer(shape, settings, hardware), **_explorer(shape, settings, hardware)}


def _trainer(shape: ModelShape, settings: Sections, hardware: Hardware) -> Mapping[str, object]:
    if not hardware.trainer_gpus:
        return {}
    found: tuple[int, dict[str, int]] | None = None
    for changes in _layouts(shape, hardware.trainer_gpus):
        trainer = settings.trainer.model_copy(update=changes)
        try:
            layout_rules.check(trainer, shape, trainer.engine)
        except ParallelError:
            continue
        need = trainer_memory(shape, settings.model_copy(update={"trainer": trainer}), hardware.trainer_bytes)
        if found is None or need.total < found[0]:
            found = need.total, changes
        if need.fits:
            found = need.total, changes
            break
    changes = {} if found is None else found[1]
    # One, and no, are what they are anyway.
    return {f"trainer.{name}": value for name, value in changes.items() if value is True or int(value) > 1}


def _layouts(shape: ModelShape, gpus: int) -> Iterator[dict[str, int]]:
    for tensor in powers_of_two(gpus):
        for recompute in (False, True):
            yield {
                "tensor_parallel": tensor,
                "sequence_parallel": tensor > 1,
                "data_parallel": gpus // tensor,
                # Each rank of a layer's copies has its share of the experts, where they can be divided so.
                "expert_parallel": gpus // tensor if shape.experts and shape.experts % (gpus // tensor) == 0 else 1,
                "recompute": recompute,
            }


def _explorer(shape: ModelShape, settings: Sections, hardware: Hardware) -> Mapping[str, object]:
    if not hardware.explorer_gpus:
        return {}
    sizes = list(engines(shape, settings, hardware.explorer_gpus, hardware.explorer_bytes))
    size = next((size for size, need in sizes if need.fits), sizes[-1][0])
    return {"explorer.tensor_parallel_size": size} if size > 1 else {}


def engines(
    shape: ModelShape, settings: Sections, most: int, gpu_bytes: int | None
) -> Iterator[tuple[int, MemoryNeed]]:
    """Yield engines of one GPU, two, four and so on that can divide the model, and what each of their GPUs needs."""
    for size in powers_of_two(most):
        if shape.heads % size == 0:
            explorer = settings.explorer.model_copy(update={"tensor_parallel_size": size})
            yield size, explorer_memory(shape, settings.model_copy(update={"explorer": explorer}), gpu_bytes)


def powers_of_two(most: int) -> Iterator[int]:
    """Yield the powers of two that divide a number, the smallest first."""
    size = 1
    while size <= most:
        if most % size == 0:
            yield size
        size *= 2
