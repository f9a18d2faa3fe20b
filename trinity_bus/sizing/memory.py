"""How much memory a trainer's rank and an explorer's GPU need, by part, each with its formula. Pure.

A trainer's rank, with ``P`` parameters on it and ``D`` copies of the model (data times context parallel):

===================  ======================================================  =========================================
part                 bytes                                                   source
===================  ======================================================  =========================================
weights              2 P in bfloat16, 4 P in float32
gradients            4 P: they are summed in float32                         Megatron-core, ``grad_reduce_in_fp32``
optimizer            12 P / D in bfloat16: a float32 copy, mean and square   Rajbhandari et al., arXiv:1910.02054, 3.1
                     of gradients, divided among the copies; in float32
                     8 P, divided where ``distributed_optimizer`` says so
reference            as weights, where ``kl_coef`` is above 0
critic               4 copies of the model in float32, with ``gae``          ``trainer.critic_learning_rate``
activations          2 T L (4 h + ((2 a + 2 g) d + 3 f e) / t), of T tokens  Korthikanti et al., arXiv:2205.05198,
                     at once; with ``recompute`` 2 T L h and one layer       section 4, counted for SwiGLU
logits               T V / t times 2 (4 in float32), twice: their gradient   ``trinity_bus/training/logprobs.py``
===================  ======================================================  =========================================

An explorer's GPU has ``gpu_memory_utilization`` of its memory; what weights and activations leave is the KV cache,
``2 L g d b`` bytes a token (Kwon et al., arXiv:2309.06180, section 3), where key-value heads are divided among GPUs, or
repeated. It must have room for one sequence of ``mesh.max_model_len`` at least, or vLLM does not start.

Estimates, and no more: the context of CUDA, NCCL and what allocators leave lie idle are the tenth that is kept back.
Nothing of this was held against a GPU yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trinity_bus.config.mesh import computed_dtype
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.parameters import adapter_parameters, rank_parameters
from trinity_bus.training.families.shape import ModelShape

GIB: Final = 1 << 30
KEPT_BACK: Final = 0.1
"""Share of a trainer's GPU that is left for what cannot be counted."""
_PREFILL_TOKENS: Final = 8192
"""That vLLM computes at once, unless told otherwise."""
_CRITIC_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """A part of what is needed."""

    name: str
    size: int
    """In bytes."""
    formula: str
    """With the numbers put in."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one GPU, or one process on CPUs, needs."""

    items: Sequence[MemoryItem]
    available: int | None
    """Bytes of it that may be used; None: not known."""
    notes: Sequence[str] = field(default=())

    @property
    def total(self) -> int:
        """In bytes."""
        return sum(item.size for item in self.items)

    @property
    def fits(self) -> bool:
        """Whether it is not known to be too much."""
        return self.available is None or self.total <= self.available


def trainer_memory(shape: ModelShape, settings: Sections, gpu_bytes: int | None) -> MemoryNeed:
    """Return what a rank of the trainer needs.

    Args:
        shape: Of the model.
        settings: Of the mesh.
        gpu_bytes: Memory of its GPU; None: it is on CPUs.
    """
    own = settings.trainer
    t, copies = own.tensor_parallel, own.data_parallel * own.context_parallel
    count = rank_parameters(shape, tensor=t, pipeline=own.pipeline_parallel, expert=own.expert_parallel)
    width = _trained_bytes(settings, gpu_bytes)
    stages = own.pipeline_parallel * t
    learned = adapter_parameters(shape, own.lora_rank) // stages if own.lora_rank else count
    of = f"{learned:,} parameters" + (" of adapters" if own.lora_rank else "")
    share = copies if width == 2 or own.distributed_optimizer else 1
    state = 12 if width == 2 else 8
    items = [
        MemoryItem("weights", width * (count + learned * bool(own.lora_rank)), f"{width} B x {count:,} parameters"),
        MemoryItem("gradients", 4 * learned, f"4 B x {of}"),
        MemoryItem("optimizer", state * learned // share, f"{state} B x {of} / {share} copies"),
    ]
    if own.kl_coef > 0:
        items.append(MemoryItem("reference model", width * count, f"{width} B x {count:,} parameters"))
    if own.advantage == "gae":
        items.append(MemoryItem("critic", _CRITIC_BYTES * count, f"{_CRITIC_BYTES} B x {count:,} parameters"))
    return MemoryNeed(
        [*items, *_activations(shape, settings, width)],
        None if gpu_bytes is None else round(gpu_bytes * (1 - KEPT_BACK)),
    )


def _activations(shape: ModelShape, settings: Sections, width: int) -> list[MemoryItem]:
    own = settings.trainer
    t = own.tensor_parallel
    # A sample that is longer than the budget goes alone, and is at most as long as the model takes.
    tokens = -(-max(own.micro_batch_tokens, settings.mesh.max_model_len) // own.context_parallel)
    split = (2 * shape.heads + 2 * shape.groups) * shape.head_dim
    split += 3 * shape.intermediate * max(1, shape.experts_per_token)
    whole = 4 * shape.hidden // (t if own.sequence_parallel else 1)
    layer = width * (whole + split // t)
    # As many micro-batches are under way in a pipeline as it has stages: its first rank holds all layers' worth.
    if own.recompute:
        held = width * shape.hidden * shape.layers + layer
        formula = f"{tokens:,} tokens x ({width} B x {shape.layers} layers x {shape.hidden:,} + one layer, {layer:,} B)"
    else:
        held = layer * shape.layers
        formula = f"{tokens:,} tokens x {shape.layers} layers x {layer:,} B"
    logits = 2 * width * shape.padded_vocabulary(t) // t
    return [
        MemoryItem("activations", tokens * held, formula),
        MemoryItem("logits", tokens * logits, f"{tokens:,} tokens x {logits:,} B"),
    ]


def explorer_memory(shape: ModelShape, settings: Sections, gpu_bytes: int | None) -> MemoryNeed:
    """Return what an explorer takes of each of its GPUs. Its KV cache is counted with the one sequence it must hold.

    Args:
        shape: Of the model.
        settings: Of the mesh.
        gpu_bytes: Memory of each; None: it is on CPUs.
    """
    own, t = settings.explorer, settings.explorer.tensor_parallel_size
    width = 4 if computed_dtype(settings.mesh.dtype, on_cpu=gpu_bytes is None) == "float32" else 2
    count = rank_parameters(shape, tensor=t, pipeline=1, expert=1)
    per_token = 2 * shape.layers * -(-shape.groups // t) * shape.head_dim * width
    length = settings.mesh.max_model_len
    # Of one layer at a time: nothing is kept for a backward pass.
    layer = width * (2 * shape.hidden + 2 * shape.intermediate // t)
    logits = 4 * own.max_num_seqs * shape.vocabulary // t
    items = [
        MemoryItem("weights", width * count, f"{width} B x {count:,} parameters"),
        MemoryItem("activations", _PREFILL_TOKENS * layer, f"{_PREFILL_TOKENS:,} tokens x {layer:,} B"),
        MemoryItem("logits", logits, f"4 B x {own.max_num_seqs} sequences x {shape.vocabulary:,} / {t}"),
        MemoryItem("KV cache of one sequence", per_token * length, f"{length:,} tokens x {per_token:,} B"),
    ]
    if gpu_bytes is None:
        cache = round(own.cpu_kvcache_gib * GIB)
        notes = [_room(cache, per_token, length)]
        if per_token * length > cache:
            notes = [f"explorer.cpu_kvcache_gib is {own.cpu_kvcache_gib:g}, less than one such sequence needs"]
        return MemoryNeed(items, None, notes)
    available = round(gpu_bytes * own.gpu_memory_utilization)
    left = available - sum(item.size for item in items[:-1])
    return MemoryNeed(items, available, [_room(left, per_token, length)] if left > 0 else [])


def _room(cache: int, per_token: int, length: int) -> str:
    tokens = cache // per_token
    return f"the KV cache has room for {tokens:,} tokens: {tokens // length:,} sequences of {length:,} at once"


def _trained_bytes(settings: Sections, gpu_bytes: int | None) -> int:
    dtype = computed_dtype(settings.mesh.dtype, on_cpu=gpu_bytes is None)
    return 4 if settings.trainer.engine == "torch" or dtype == "float32" else 2
