"""How much memory a trainer's rank and an explorer's GPU need, by part, each with its formula. Pure.

A trainer's rank, with ``P`` parameters on it and ``D`` copies of the model (data times context parallel):

===================  ======================================================  =========================================
part                 bytes                                                   source
===================  ======================================================  =========================================
process              780 Mi on a CPU: the interpreter, torch, what it loads  measured
weights              2 P in bfloat16, 4 P in float32
gradients            4 P: they are summed in float32                         Megatron-core, ``grad_reduce_in_fp32``
optimizer            12 P / D in bfloat16: a float32 copy, mean and square   Rajbhandari et al., arXiv:1910.02054, 3.1
                     of gradients, divided among the copies; in float32
                     8 P, divided where ``distributed_optimizer`` says so
embedding            V h / t: its gradient in a pass, before it is summed
reference            as weights, where ``kl_coef`` is above 0
critic               4 copies of the model in float32, with ``gae``          ``trainer.critic_learning_rate``
versions             three times the model with ``publish=staged``: two      ``trinity_bus/weights/staging.py``
                     that can be had and one on its way; else they are files
checkpoint           weights and optimizer, of the whole model, on the rank  ``trinity_bus/training/engines/saving.py``
                     that gathers it of several; one rank copies nothing
activations          T L (4 h + (6 (a + g) d + 3 f e) / t) times 2 or 4, of  Korthikanti et al., arXiv:2205.05198,
                     T tokens at once; the plain engine keeps 8 h and 4 f;   section 4, counted for SwiGLU and for
                     with ``recompute`` T L h and one layer; in bfloat16 on  sequences that are padded in attention,
                     a CPU 4 (a + g) d / t bytes more                        which is float32 there beside bfloat16
logits               5 chunks of 16 Mi, whatever the micro-batch             ``training/megatron/logprobs.py``
===================  ======================================================  =========================================

Of memory on CPUs ``process``, ``versions`` and ``checkpoint`` are told; on a GPU the versions that are sent from there
are not counted.

An explorer on CPUs, all its processes together, with ``b`` bytes an element and ``P`` parameters:

===================  ======================================================  =========================================
part                 bytes                                                   source
===================  ======================================================  =========================================
processes            the service, its engine and a runner; each further one  assumed
weights              b (P + V h): packed for the processor, and the output   vLLM, ``dispatch_cpu_unquantized_gemm``
                     layer, which may be the embedding too, not packed also
next version         as weights, made ready beside those that serve; where   ``trinity_bus/weights/vllm/loading.py``
                     versions are adapters, or none come, it is not there
received version     b P: kept for others that take it from here             ``trinity_bus/weights/receiver.py``
activations          4 (2 h + 2 f) of the tokens of a step                   one layer at a time
logits               6 x 4 V of each sequence: copies on the way to a token  assumed
KV cache             for ``max_num_seqs`` of ``max_model_len`` tokens, but   ``trinity_bus/inference/launch.py``
                     ``cpu_kvcache_gib`` at most; all of it from the start
===================  ======================================================  =========================================

An explorer's GPU has ``gpu_memory_utilization`` of its memory; what weights and activations leave is the KV cache,
``2 L g d b`` bytes a token (Kwon et al., arXiv:2309.06180, section 3), where key-value heads are divided among GPUs, or
repeated. It must have room for one sequence of ``mesh.max_model_len`` at least, or vLLM does not start.

``benchmarks/memory.py`` holds this against peaks that it measures on a CPU; of an explorer no peak is kept yet. Nothing
of it was held against a GPU: the context of CUDA, NCCL and what allocators leave lie idle are the tenth that is kept
back there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from trinity_bus.config import ExplorerSettings, TrainerSettings
from trinity_bus.config.mesh import computed_dtype
from trinity_bus.config.sections import Sections
from trinity_bus.training.families import ModelShape
from trinity_bus.training.steps.packing import LOGITS_AT_ONCE, ON_GPU

GIB: Final = 1 << 30
_ACTIVATIONS: Final = "activations"
KEPT_BACK: Final = 0.1  # Share of a trainer's GPU that is left for what cannot be counted
_PREFILL_TOKENS: Final = 8192  # That vLLM computes at once, unless told otherwise
# The same on CPUs, for each of its workers; or the longest sequence, which is computed in one piece there
_CPU_PREFILL_TOKENS: Final = 2048
CPU_BLOCK_TOKENS: Final = 128  # Of a block of the KV cache on CPUs, vLLM's own choice there
_CPU_LOGITS: Final = 6  # Copies of a sequence's logits, on the way to a token
_EXPLORER_BYTES: Final = 1100 << 20
_RUNNER_BYTES: Final = 60 << 20
# Of processes that compute nothing with a model, before they hold anything: measured over 21 minutes on 2026-11-23; a
# gateway's tokenizer and a task set's rows are assumed. Kafka's is beside its heap.
_SERVICE_BYTES: Final[Mapping[str, int]] = {
    "coordinator": 140 << 20,
    "taskset": 250 << 20,
    "gateway": 250 << 20,
    "console": 250 << 20,
    "kafka": 130 << 20,
}
# Of what is needed, that a limit has to be at least: the formula may be a fifth below the peak
LIMIT_SHARE: Final = 1.25
_CRITIC_BYTES: Final = 16
_PROCESS_BYTES: Final = 780 << 20
_CHUNKS: Final = 5  # Of logits, at once
_STAGED: Final = 3
_ONCE: Final = frozenset({"versions", "checkpoint"})  # What the first of several ranks alone holds
_LIMIT_STEP: Final = 256 << 20
# For the largest part of a trainer
_REMEDIES: Final[Mapping[str, str]] = {
    _ACTIVATIONS: "set mesh.max_model_len lower",
    "reference model": "set trainer.kl_coef to 0",
    "critic": "set trainer.advantage to one without a critic",
    "versions": "set trainer.publish to durable",
}
MOST_TOKENS: Final = 16_384  # Of a micro-batch, with ``auto``
_ROUNDED: Final = 32
_CPU_BYTES: Final = 512 << 20  # For activations on a CPU, at least: more makes no step faster that is worth the memory
_CPU_SHARE: Final = 1 / 4  # Of weights, gradients and optimizer; for activations on a CPU


@dataclass(frozen=True, slots=True)
class MemoryItem:
    name: str
    size: int  # In bytes
    formula: str  # With the numbers put in


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one GPU, or one process on CPUs, needs."""

    items: Sequence[MemoryItem]
    available: int | None  # Bytes of it that may be used; None: not known
    notes: Sequence[str] = field(default=())
    recompute: bool = False  # Whether a trainer fits so because it computes activations again

    @property
    def fixed(self) -> list[MemoryItem]:
        """What does not hang on the size of a micro-batch."""
        return [item for item in self.items if item.name != _ACTIVATIONS]

    @property
    def total(self) -> int:
        return sum(item.size for item in self.items)

    @property
    def fits(self) -> bool:
        return self.available is None or self.total <= self.available


def trainer_memory(shape: ModelShape, settings: Sections, gpu_bytes: int | None) -> MemoryNeed:
    """Return what a rank of the trainer needs. ``gpu_bytes`` is None on CPUs."""
    return trainer_need(shape, settings.trainer, gpu_bytes, settings.mesh.max_model_len)


def trainer_need(
    shape: ModelShape, own: TrainerSettings, gpu_bytes: int | None, longest: int, available: int | None = None
) -> MemoryNeed:
    """Return what a rank of the trainer needs; of micro-batches, with ``auto``, as many as will be taken.

    ``gpu_bytes`` is None on CPUs; ``longest``: tokens that a sample may have. Without ``available`` a GPU has all but
    what is kept back, and of a machine it is not known.
    """
    fixed = _fixed(shape, own, gpu_bytes)
    if available is None and gpu_bytes is not None:
        available = round(gpu_bytes * (1 - KEPT_BACK))
    tokens, recompute = own.micro_batch_tokens, own.recompute
    if tokens == "auto":
        room = None if available is None else available - sum(item.size for item in fixed)
        # Where nothing fits, what would be needed is told.
        tokens, recompute = micro_batch(shape, own, gpu_bytes, longest, room) or (longest, not own.router_replay)
    # A sample that is longer than the budget goes alone, and is at most as long as the model takes.
    tokens = -(-max(tokens, longest) // own.context_parallel)
    size, formula = _per_token(shape, own, gpu_bytes, recompute=recompute)
    return MemoryNeed(
        [*fixed, MemoryItem(_ACTIVATIONS, tokens * size, f"{tokens:,} tokens x {formula}")],
        available,
        recompute=recompute,
    )


def micro_batch(
    shape: ModelShape, own: TrainerSettings, gpu_bytes: int | None, longest: int, room: int | None
) -> tuple[int, bool] | None:
    """Return how many tokens go through the model at once, and whether activations are computed again.

    None where the longest sample does not fit. ``room``: bytes for activations; None: not known, as much as is wanted.
    """
    kinds = [True] if own.recompute else [False] if own.router_replay else [False, True]
    for recompute in kinds:
        size, _ = _per_token(shape, own, gpu_bytes, recompute=recompute)
        size = -(-size // own.context_parallel)
        if room is not None and longest * size > room:
            continue
        wanted = MOST_TOKENS * size
        if gpu_bytes is None:
            state = sum(item.size for item in _state(shape, own, gpu_bytes))
            wanted = min(wanted, max(_CPU_BYTES, round(_CPU_SHARE * state)))
        tokens = (wanted if room is None else min(wanted, room)) // size
        return max(tokens // _ROUNDED, 1) * _ROUNDED, recompute
    return None


def _state(shape: ModelShape, own: TrainerSettings, gpu_bytes: int | None) -> list[MemoryItem]:
    copies = own.data_parallel * own.context_parallel
    count = _of_rank(shape, own)
    width = _trained_bytes(own, gpu_bytes)
    stages = own.pipeline_parallel * own.tensor_parallel
    learned = adapter_parameters(shape, own.lora_rank) // stages if own.lora_rank else count
    of = f"{learned:,} parameters" + (" of adapters" if own.lora_rank else "")
    share = copies if width == 2 or own.distributed_optimizer else 1
    state = 12 if width == 2 else 8
    return [
        MemoryItem("weights", width * (count + learned * bool(own.lora_rank)), f"{width} B x {count:,} parameters"),
        MemoryItem("gradients", 4 * learned, f"4 B x {of}"),
        MemoryItem("optimizer", state * learned // share, f"{state} B x {of} / {share} copies"),
    ]


def _fixed(shape: ModelShape, own: TrainerSettings, gpu_bytes: int | None) -> list[MemoryItem]:
    t, width = own.tensor_parallel, _trained_bytes(own, gpu_bytes)
    count, everything = _of_rank(shape, own), parameters(shape)
    of = f"{width} B x {count:,} parameters"
    items = _state(shape, own, gpu_bytes)
    rows = shape.padded_vocabulary(t) // t
    if not own.lora_rank:
        items.append(MemoryItem("embedding", width * rows * shape.hidden, f"{width} B x {rows:,} x {shape.hidden:,}"))
    if own.kl_coef > 0:
        items.append(MemoryItem("reference model", width * count, of))
    if own.advantage == "gae":
        items.append(MemoryItem("critic", _CRITIC_BYTES * count, f"{_CRITIC_BYTES} B x {count:,} parameters"))
    logits = LOGITS_AT_ONCE * (1 if gpu_bytes is None else ON_GPU)
    items.append(MemoryItem("logits", 4 * _CHUNKS * logits, f"{_CHUNKS} chunks of {logits:,} x 4 B"))
    if gpu_bytes is not None:
        return items
    items.insert(0, MemoryItem("process", _PROCESS_BYTES, "measured"))
    if own.publish == "staged" and not own.adapter_rank:
        items.append(MemoryItem("versions", _STAGED * width * everything, f"{_STAGED} x {width} B x {everything:,}"))
    if own.ranks > 1:
        saved = width + (12 if width == 2 else 8)
        items.append(MemoryItem("checkpoint", saved * everything, f"{saved} B x {everything:,} parameters"))
    return items


def _of_rank(shape: ModelShape, own: TrainerSettings) -> int:
    return parameters(shape, tensor=own.tensor_parallel, pipeline=own.pipeline_parallel, expert=own.expert_parallel)


def _per_token(shape: ModelShape, own: TrainerSettings, gpu_bytes: int | None, *, recompute: bool) -> tuple[int, str]:
    t, width, is_plain = own.tensor_parallel, _trained_bytes(own, gpu_bytes), own.engine == "torch"
    attended = (shape.heads + shape.groups) * shape.head_dim
    split = 6 * attended + (4 if is_plain else 3) * shape.intermediate * max(1, shape.experts_per_token)
    whole = (8 if is_plain else 4) * shape.hidden // (t if own.sequence_parallel else 1)
    layer = width * (whole + split // t)
    if gpu_bytes is None and width == 2:
        # Queries, keys, values and what comes of them, in float32
        layer += 4 * attended // t
    # As many micro-batches are under way in a pipeline as it has stages: its first rank holds all layers' worth.
    if recompute:
        size = width * shape.hidden * shape.layers + layer
        return size, f"({width} B x {shape.layers} layers x {shape.hidden:,} + one layer, {layer:,} B)"
    return layer * shape.layers, f"{shape.layers} layers x {layer:,} B"


def explorer_memory(shape: ModelShape, settings: Sections, gpu_bytes: int | None) -> MemoryNeed:
    """Return what an explorer takes of each of its GPUs. Its KV cache is counted with the one sequence it must hold."""
    if gpu_bytes is None:
        return _explorer_on_cpus(shape, settings)
    own, t = settings.explorer, settings.explorer.tensor_parallel_size
    width, per_token = _explored_bytes(settings, on_cpu=False), _cached_bytes(shape, settings, on_cpu=False)
    count, length = parameters(shape, tensor=t), settings.mesh.max_model_len
    # Of one layer at a time: nothing is kept for a backward pass.
    layer = width * (2 * shape.hidden + 2 * shape.intermediate // t)
    logits = 4 * own.max_num_seqs * shape.vocabulary // t
    items = [
        MemoryItem("weights", width * count, f"{width} B x {count:,} parameters"),
        MemoryItem(_ACTIVATIONS, _PREFILL_TOKENS * layer, f"{_PREFILL_TOKENS:,} tokens x {layer:,} B"),
        MemoryItem("logits", logits, f"4 B x {own.max_num_seqs} sequences x {shape.vocabulary:,} / {t}"),
        MemoryItem("KV cache of one sequence", per_token * length, f"{length:,} tokens x {per_token:,} B"),
    ]
    available = round(gpu_bytes * own.gpu_memory_utilization)
    left = available - sum(item.size for item in items[:-1])
    return MemoryNeed(items, available, [_room(left, per_token, length)] if left > 0 else [])


def _explorer_on_cpus(shape: ModelShape, settings: Sections) -> MemoryNeed:
    # What an explorer takes of its machine's memory, all its processes together
    own, length, t = settings.explorer, settings.mesh.max_model_len, settings.explorer.tensor_parallel_size
    processes = _EXPLORER_BYTES * t + _RUNNER_BYTES * (own.runners - 1)
    items = [MemoryItem("processes", processes, f"assumed, {t} workers and {own.runners} runners")]
    if own.engine_url is not None:
        return MemoryNeed(items, None)
    width, per_token = _explored_bytes(settings, on_cpu=True), _cached_bytes(shape, settings, on_cpu=True)
    count, output = parameters(shape), shape.vocabulary * shape.hidden
    packed = MemoryItem("weights", width * (count + output), f"{width} B x ({count:,} parameters + {output:,})")
    items.append(packed)
    if own.follows != "none" and not own.serves_adapter:
        sent = {"same": width, "float32": 4}.get(settings.synchronizer.sync_dtype, 2)
        items.append(replace(packed, name="next version"))
        items.append(MemoryItem("received version", sent * count, f"{sent} B x {count:,} parameters"))
    tokens, layer = max(_CPU_PREFILL_TOKENS * t, length), 4 * (2 * shape.hidden + 2 * shape.intermediate)
    items.append(MemoryItem(_ACTIVATIONS, tokens * layer, f"{tokens:,} tokens x {layer:,} B"))
    logits = _CPU_LOGITS * 4 * own.max_num_seqs * shape.vocabulary
    of = f"{_CPU_LOGITS} x 4 B x {own.max_num_seqs} sequences x {shape.vocabulary:,}"
    items.append(MemoryItem("logits", logits, of))
    cache = cpu_cache_bytes(own, per_token)
    items.append(MemoryItem("KV cache", cache, f"{cache // per_token:,} tokens x {per_token:,} B"))
    notes = [_room(cache, per_token, length)]
    if per_token * length > cache:
        notes = [f"explorer.cpu_kvcache_gib is {own.cpu_kvcache_gib:g}, less than one such sequence needs"]
    return MemoryNeed(items, None, notes)


def cpu_cache_bytes(own: ExplorerSettings, per_token: int) -> int:
    """Return how large the KV cache is on CPUs.

    Room for ``max_num_seqs`` sequences of ``max_model_len`` tokens of ``per_token`` bytes, in whole blocks, and one
    more block, which vLLM keeps for itself; ``cpu_kvcache_gib`` at most.
    """
    blocks = -(-own.max_model_len // CPU_BLOCK_TOKENS) * own.max_num_seqs + 1
    return min(int(own.cpu_kvcache_gib * GIB), per_token * blocks * CPU_BLOCK_TOKENS)


def _explored_bytes(settings: Sections, *, on_cpu: bool) -> int:
    return 4 if computed_dtype(settings.mesh.dtype, on_cpu=on_cpu) == "float32" else 2


def _cached_bytes(shape: ModelShape, settings: Sections, *, on_cpu: bool) -> int:
    # The bytes of keys and values of a token: on one of its GPUs, or on all its CPUs
    t = 1 if on_cpu else settings.explorer.tensor_parallel_size
    return 2 * shape.layers * -(-shape.groups // t) * shape.head_dim * _explored_bytes(settings, on_cpu=on_cpu)


def _room(cache: int, per_token: int, length: int) -> str:
    tokens = cache // per_token
    return f"the KV cache has room for {tokens:,} tokens: {tokens // length:,} sequences of {length:,} at once"


def _trained_bytes(own: TrainerSettings, gpu_bytes: int | None) -> int:
    return 4 if own.engine == "torch" or computed_dtype(own.dtype, on_cpu=gpu_bytes is None) == "float32" else 2


# ------------------------------------------------------------------------------------------- services of one machine


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What services that compute on the CPUs of one machine need of its memory, beside what it has."""

    needs: Sequence[tuple[str, MemoryNeed]]  # Of each, by its name
    total: int  # Bytes that machine and control group have
    free: int
    remedy: str

    @property
    def needed(self) -> int:
        return sum(need.total for _, need in self.needs)

    @property
    def told(self) -> str:
        each = ", ".join(f"{name} {_gib(need.total)}" for name, need in self.needs)
        return f"{each}: {_gib(self.needed)} GiB of memory, of {_gib(self.total)}, of which {_gib(self.free)} are free"

    @property
    def impossible(self) -> str:
        """The line that says that they never fit; empty where they may."""
        return f"{self.told}: {self.remedy}" if self.needed > self.total else ""

    @property
    def tight(self) -> str:
        """The line that says that they do not fit beside what runs now; empty where they do, or never fit."""
        return f"{self.told}: end what else runs, or {self.remedy}" if self.free < self.needed <= self.total else ""


def host_memory(
    services: Sequence[str], settings: Sections, shapes: Mapping[str, ModelShape], total: int, free: int
) -> HostMemory:
    """Return what services on the CPUs of one machine need; a trainer with ``auto`` takes what is left for it.

    Kinds of ``services`` stand there as often as they run; ``kafka`` is the embedded broker. Both sizes are bytes.
    """
    others = [(name, service_memory(name, settings, shapes.get(name))) for name in services if name != "trainer"]
    if "trainer" not in services:
        return HostMemory(others, total, free, _remedy(others))
    left = max(free - sum(need.total for _, need in others), 0)
    needs = [("trainer", service_memory("trainer", settings, shapes["trainer"], left)), *others]
    remedy = _remedy(needs)
    if settings.trainer.micro_batch_tokens != "auto":
        fitting = settings.trainer.model_copy(update={"micro_batch_tokens": "auto"})
        auto = settings.model_copy(update={"trainer": fitting})
        least = service_memory("trainer", auto, shapes["trainer"], left).total
        if least + sum(need.total for _, need in others) <= total:
            remedy = "set trainer.micro_batch_tokens to auto"
    return HostMemory(needs, total, free, remedy)


def service_memory(name: str, settings: Sections, shape: ModelShape | None, available: int | None = None) -> MemoryNeed:
    """Return what a service takes of the memory of the machine on whose CPUs it computes."""
    if name == "trainer":
        assert shape is not None  # noqa: S101 - whoever asks for one has read it
        own = settings.trainer
        each = None if available is None else available // own.ranks
        need = trainer_need(shape, own, None, settings.mesh.max_model_len, each)
        if own.ranks == 1:
            return need
        many = [
            MemoryItem(item.name, own.ranks * item.size, f"{own.ranks} x ({item.formula})")
            for item in need.items
            if item.name not in _ONCE
        ]
        once = [item for item in need.items if item.name in _ONCE]
        return replace(need, items=[*many, *once], available=available)
    if name == "explorer":
        assert shape is not None  # noqa: S101 - likewise
        return replace(explorer_memory(shape, settings, None), available=available)
    items = [MemoryItem("process", _SERVICE_BYTES[name], "measured")]
    held = {
        "coordinator": (settings.coordinator.max_open_bytes, "coordinator.max_open_bytes"),
        "gateway": (settings.gateway.max_waiting_mib << 20, "gateway.max_waiting_mib"),
        "kafka": (settings.broker.heap_mib << 20, "broker.heap_mib"),
    }
    if name in held:
        size, setting = held[name]
        items.append(MemoryItem("held", size, setting))
    return MemoryNeed(items, available)


def limit_bytes(need: MemoryNeed) -> int:
    """Return a limit of memory for what has such a need, a multiple of 256 MiB."""
    return -(-round(LIMIT_SHARE * need.total) // _LIMIT_STEP) * _LIMIT_STEP


def _remedy(needs: Sequence[tuple[str, MemoryNeed]]) -> str:
    # What to do about the largest part of all, as far as there is a setting for it
    name, item = max(((name, item) for name, need in needs for item in need.items), key=lambda one: one[1].size)
    if name == "explorer" and item.name in {"KV cache", "logits"}:
        return "set explorer.cpu_kvcache_gib lower" if item.name == "KV cache" else "set explorer.max_num_seqs lower"
    if name == "trainer" and item.name in _REMEDIES:
        return _REMEDIES[item.name]
    return "train adapters (trainer.lora_rank), take a smaller model, or run the services on several machines"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def parameters(shape: ModelShape, *, tensor: int = 1, pipeline: int = 1, expert: int = 1) -> int:
    """Return how many parameters a model has, or the rank that has the most: one of the last stage, or of the first.

    ::

        embedding    V h                                  output       V h, unless it is the embedding
        attention    h (a + 2 g) d + a d h                final norm   h
                     + (a + 2 g) d  with biases, + 2 d  with norms of queries and keys
        MLP          3 h f, of each expert                router       h E, with E experts
        norms        2 h

    with vocabulary ``V``, hidden size ``h``, ``a`` heads and ``g`` key-value heads of dimension ``d``, and width ``f``.
    """
    h, d = shape.hidden, shape.head_dim
    attention = h * (shape.heads + 2 * shape.groups) * d + shape.heads * d * h
    if shape.qkv_bias:
        attention += (shape.heads + 2 * shape.groups) * d
    experts = -(-max(1, shape.experts) // expert)
    split = attention + 3 * h * shape.intermediate * experts
    whole = 2 * h + (2 * d if shape.qk_norm else 0) + h * shape.experts
    layers = -(-shape.layers // pipeline)
    embedding = shape.padded_vocabulary(tensor) // tensor * h
    # One rank has both ends; of several stages the first has the embedding, and the last, as large, the output.
    ends = embedding * (2 if pipeline == 1 and not shape.tied else 1)
    return layers * (-(-split // tensor) + whole) + ends + h


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Return the parameters of adapters: ``r (in + out)`` beside a linear layer (Hu et al., arXiv:2106.09685, 4.1)."""
    h, d = shape.hidden, shape.head_dim
    queries, keys = shape.heads * d, shape.groups * d
    # Queries, keys and values are one layer to the trainer, as gate and up are.
    layers = ((h, queries + 2 * keys), (queries, h), (h, 2 * shape.intermediate), (shape.intermediate, h))
    return shape.layers * rank * sum(inwards + outwards for inwards, outwards in layers)


def _qwen3(
    layers: int, hidden: int, heads: int, groups: int, intermediate: int, *, tied: bool = False, experts: int = 0
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        groups=groups,
        head_dim=128,
        intermediate=intermediate,
        vocabulary=151_936,
        max_positions=40_960,
        norm_epsilon=1e-6,
        rope_theta=1e6,
        tied=tied,
        qk_norm=True,
        qkv_bias=False,
        experts=experts,
        experts_per_token=8 if experts else 0,
    )


# Of Qwen3, by the names of its sizes, from the ``config.json`` that each is published with (Yang et al., "Qwen3
# Technical Report", arXiv:2505.09388, tables 1 and 2, has the same).
MODELS: Final = MappingProxyType(
    {
        "0.6B": _qwen3(28, 1024, 16, 8, 3072, tied=True),
        "1.7B": _qwen3(28, 2048, 16, 8, 6144, tied=True),
        "4B": _qwen3(36, 2560, 32, 8, 9728, tied=True),
        "8B": _qwen3(36, 4096, 32, 8, 12_288),
        "14B": _qwen3(40, 5120, 40, 8, 17_408),
        "32B": _qwen3(64, 5120, 64, 8, 25_600),
        "30B-A3B": _qwen3(48, 2048, 32, 4, 768, experts=128),
        "235B-A22B": _qwen3(94, 4096, 64, 4, 1536, experts=128),
    }
)
