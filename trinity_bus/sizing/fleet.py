"""How much a mesh does that so many GPUs are given to, and what it needs for that. Pure.

The formulas and their sources are in docs/sizing.md. Of all ways to divide the GPUs the one with the most samples a
second is taken: without staleness explorers and trainer take turns, with it they overlap. A trainer's GPU does two more
operations a parameter and token with recompute, and two more with a reference model.

Estimates before there is a machine: whoever has measured tokens a second gives them instead.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from schemas.topics import EXPERIENCES
from trinity_bus.config.sections import Sections
from trinity_bus.errors import TrinityError
from trinity_bus.sizing.hardware import BANDWIDTH_SHARE, PREFILL_SHARE, TRAINING_SHARE, Gpu, engines, powers_of_two
from trinity_bus.sizing.memory import GIB, parameters, trainer_memory
from trinity_bus.training.families import ModelShape
from trinity_bus.weights.layout import chunk_bytes

TASK_BYTES: Final = 109  # Of a task besides its text; the same as JSON has some more
ORDER_BYTES: Final = 279  # Of a task's order besides its text
TEXT_BYTES: Final = 4.5  # Of a token as text, in English. Assumed: it is a small part of what a task comes to.
# Of all that is written of a task when its eight runs have ended: what explorer, coordinator and trainer say of it
RESULT_BYTES: Final = 1500
TOKEN_BYTES: Final = 7.81  # Of a token in ``experiences``: ``benchmarks/codec.py``
COPIES: Final = 3  # Of each record, on as many brokers
COORDINATOR_S: Final = 281e-6  # Of one core, a task: ``benchmarks/scheduling.py``, eight explorers
HEARTBEAT_S: Final = 78e-6  # Of one core, a heartbeat with 64 runs under way: ``benchmarks/fleet.py``, 1,000 explorers
BROKER_S: Final = 189e-6  # Of a core, a task: ``benchmarks/scheduling.py``, eight explorers
BUSY_ON_POLICY: Final = 0.21
BUSY: Final = 0.85  # Of an explorer's slots, with a staleness of 0, and of 8: ``benchmarks/scheduling.py``
# Of a broker's link that may be used when all is well: the rest is for a broker that comes back
_NIC_SHARE: Final = 0.5
_MOST_TENSOR: Final = 8
_WHOLE: Final = 100


class SizeError(TrinityError, ValueError):
    """What was asked for does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingInput:
    """What is to be sized. Tokens of tasks and samples are means.

    ``gbit_s`` is of a machine's network link; ``rollout_tokens_s`` and ``train_tokens_s`` are a GPU's, where measured.
    """

    gpus: int
    gpu: Gpu
    shape: ModelShape
    settings: Sections
    prompt_tokens: int
    response_tokens: int
    gbit_s: float = 100.0
    rollout_tokens_s: float | None = None
    train_tokens_s: float | None = None


@dataclass(frozen=True, slots=True)
class SizeFigure:
    name: str
    value: float
    unit: str
    formula: str  # Where it comes from, with the numbers put in
    warning: str = ""  # What to do about it, where it is too much

    @property
    def shown(self) -> str:
        """The figure's value, with three significant digits."""
        return f"{self.value:,.0f}" if self.value >= _WHOLE or self.value == int(self.value) else f"{self.value:.3g}"


@dataclass(frozen=True, slots=True)
class EngineSize:
    gpus: int
    sequences: int  # That it draws for at once
    step_s: float  # In which it draws a token for each
    tokens_s: float


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """The least that holds the model: a copy of it on so many GPUs."""

    tensor: int
    pipeline: int
    recompute: bool
    tokens_s: float  # Of one GPU

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


def sized(ask: SizingInput) -> list[SizeFigure]:
    """Return what these GPUs do, and need. Raises SizeError where the model, or trainer and explorer, do not fit."""
    engine, trainer = _engine(ask), _trainer(ask)
    explorers, samples_s = _divided(ask, engine, trainer)
    own = ask.settings.coordinator
    tasks_s = samples_s / own.group_size
    step_s = own.batch_size / tasks_s
    trained_gpus = ask.gpus - explorers * engine.gpus
    tokens = ask.prompt_tokens + ask.response_tokens
    task = TASK_BYTES + ORDER_BYTES + 2 * TEXT_BYTES * ask.prompt_tokens + RESULT_BYTES
    bytes_s = tasks_s * task + samples_s * tokens * TOKEN_BYTES
    nic = ask.gbit_s / 8 * 1e9
    timeout_s = ask.settings.synchronizer.sync_timeout_s
    weights = 2 * parameters(ask.shape)
    method = ask.settings.synchronizer.sync_method
    passed_on = method == "memory" and ask.settings.synchronizer.sync_fan_out
    late = chunk_bytes(ask.settings.trainer.bucket_mib << 20, weights)
    way = "who pass it on" if passed_on else "one after the other: with memory, sync_fan_out passes it on"
    copies = explorers  # one after the other
    if method == "object":
        way, copies = "all at once, once it is written to the store", 2
    sync_s = (weights + (explorers - 1) * late if passed_on else weights * copies) / nic
    sample_s = ask.response_tokens * engine.step_s
    batches = own.max_staleness + 1
    kept = batches * own.batch_size * own.group_size * tokens * TOKEN_BYTES
    budget = EXPERIENCES.partitions * (EXPERIENCES.retention_bytes or 0)
    beats_s = min(explorers / ask.settings.explorer.heartbeat_s, own.explorer_beats_per_s)
    cores = tasks_s * COORDINATOR_S + beats_s * HEARTBEAT_S
    stale = (sample_s + sync_s) / step_s if own.max_staleness else 0.0
    # Each byte comes in once and goes to the other copies, to the coordinator, and to explorer or trainer.
    flow = bytes_s * (COPIES + 2)
    brokers = max(COPIES, math.ceil(flow / (nic * _NIC_SHARE)))
    return [
        SizeFigure("trainer", trained_gpus, "GPUs", _of_trainer(trainer)),
        SizeFigure(
            "explorers",
            explorers,
            f"of {engine.gpus} GPUs",
            f"{engine.sequences} sequences at once, a token each in {engine.step_s * 1000:.1f} ms: "
            f"{engine.tokens_s:,.0f} tokens/s",
        ),
        SizeFigure("samples", samples_s, "1/s", f"{tokens:,} tokens each; the slower of explorers and trainer"),
        SizeFigure("tasks", tasks_s, "1/s", f"samples / {own.group_size} runs"),
        SizeFigure("step", step_s, "s", f"{own.batch_size} tasks / tasks a second"),
        SizeFigure("bytes to the log", bytes_s / 1e6, "MB/s", f"{task:,.0f} B a task, {TOKEN_BYTES} B a token"),
        SizeFigure("a day of it, all copies", bytes_s * 86_400 * COPIES / 1e9, "GB", f"86,400 s x {COPIES} copies"),
        SizeFigure(
            "experiences that must be kept",
            kept / GIB,
            "GiB",
            f"{batches} batches of {own.batch_size} tasks under way; the topic's budget is {budget / GIB:,.0f} GiB",
            "give the topic a larger retention.bytes" if kept > budget / 2 else "",
        ),
        SizeFigure(
            "brokers", brokers, "", f"{flow / 1e6:,.1f} MB/s over half of {ask.gbit_s:g} Gb/s; {COPIES} for copies"
        ),
        SizeFigure("brokers, processor", tasks_s * BROKER_S, "cores", f"{BROKER_S * 1e6:.0f} us a task"),
        SizeFigure(
            "partitions of experiences",
            max(EXPERIENCES.partitions, math.ceil(bytes_s / 10e6)),
            "",
            f"10 MB/s each; made with {EXPERIENCES.partitions}",
            "trinity-bus topics grow experiences" if bytes_s > EXPERIENCES.partitions * 10e6 else "",
        ),
        SizeFigure(
            "coordinator, processor",
            cores,
            "cores",
            f"{COORDINATOR_S * 1e6:.0f} us a task, {HEARTBEAT_S * 1e6:.0f} us a heartbeat; it has one",
            "lower coordinator.explorer_beats_per_s, or make two meshes" if cores > 0.5 else "",
        ),
        SizeFigure(
            "sync of a version",
            sync_s,
            "s",
            f"{weights / 1e9:,.1f} GB to {explorers} explorers over {ask.gbit_s:g} Gb/s, " + way,
            f"raise synchronizer.sync_timeout_s, which is {timeout_s:g}" if sync_s > timeout_s else "",
        ),
        SizeFigure(
            "staleness",
            stale,
            "versions",
            f"a sample takes {sample_s:.0f} s, a sync {sync_s:.1f} s, over a step",
            f"raise coordinator.max_staleness, which is {own.max_staleness}" if stale > own.max_staleness else "",
        ),
    ]


def _of_trainer(plan: TrainerPlan) -> str:
    layout = f"tensor {plan.tensor}, pipeline {plan.pipeline}" + (", recompute" if plan.recompute else "")
    return f"copies of {plan.gpus} ({layout}); {plan.tokens_s:,.0f} tokens/s a GPU"


def active_parameters(shape: ModelShape) -> int:
    """Return how many parameters compute a token: of experts, those alone that are chosen."""
    return parameters(replace(shape, experts=shape.experts_per_token)) if shape.experts else parameters(shape)


def _engine(ask: SizingInput) -> EngineSize:
    cached = ask.prompt_tokens + ask.response_tokens / 2
    found = None
    most = ask.settings.explorer.max_num_seqs
    for tensor, need in engines(ask.shape, ask.settings, _MOST_TENSOR, round(ask.gpu.memory_gib * GIB)):
        if not need.fits:
            continue
        *fixed, cache = need.items
        per_token = cache.size / ask.settings.mesh.max_model_len
        room = (need.available or 0) - sum(item.size for item in fixed)
        sequences = min(most, int(room / (per_token * cached)))
        found = _drawn(ask, tensor, max(1, sequences), per_token)
        if sequences == most or 2 * room > (need.available or 0):
            break
    if found is None:
        raise SizeError(
            f"an explorer of up to {_MOST_TENSOR} GPUs of {ask.gpu.memory_gib:g} GiB cannot hold this model with "
            f"mesh.max_model_len {ask.settings.mesh.max_model_len}"
        )
    return found


def _drawn(ask: SizingInput, tensor: int, sequences: int, per_token: float) -> EngineSize:
    active, cached = active_parameters(ask.shape), ask.prompt_tokens + ask.response_tokens / 2
    operations = ask.gpu.tflops * 1e12 * PREFILL_SHARE * tensor
    read = min(parameters(ask.shape), active * sequences)
    computed_s = 2 * active * sequences / operations
    read_s = (2 * read / tensor + sequences * cached * per_token) / (ask.gpu.bandwidth_tb_s * 1e12 * BANDWIDTH_SHARE)
    step_s = max(computed_s, read_s)
    # A prompt is computed once for the runs of its task.
    prompt_s = 2 * active * ask.prompt_tokens / ask.settings.coordinator.group_size / operations
    tokens_s = ask.response_tokens / (ask.response_tokens * step_s / sequences + prompt_s)
    if ask.rollout_tokens_s is not None:
        tokens_s = ask.rollout_tokens_s * tensor
        step_s = sequences / tokens_s
    return EngineSize(tensor, sequences, step_s, tokens_s)


def _trainer(ask: SizingInput) -> TrainerPlan:
    shape, own = ask.shape, ask.settings.trainer
    gpu_bytes = round(ask.gpu.memory_gib * GIB)
    layouts = sorted(
        (tensor * pipeline, pipeline, recompute)
        for tensor in powers_of_two(_MOST_TENSOR)
        for pipeline in powers_of_two(shape.layers)
        for recompute in (False, True)
        if shape.heads % tensor == 0 and tensor * pipeline < ask.gpus
    )
    for ranks, pipeline, recompute in layouts:
        tensor, copies = ranks // pipeline, max(1, ask.gpus // 2 // ranks)
        changes = {
            "tensor_parallel": tensor,
            "sequence_parallel": tensor > 1,
            "pipeline_parallel": pipeline,
            "data_parallel": copies,
            "distributed_optimizer": True,
            "expert_parallel": math.gcd(copies, shape.experts) if shape.experts else 1,
            "recompute": recompute,
        }
        trainer = own.model_copy(update=changes)
        need = trainer_memory(shape, ask.settings.model_copy(update={"trainer": trainer}), gpu_bytes)
        if need.fits:
            passes = 6 + 2 * need.recompute + 2 * (own.kl_coef > 0)
            tokens_s = ask.gpu.tflops * 1e12 * TRAINING_SHARE / (passes * active_parameters(shape))
            return TrainerPlan(tensor, pipeline, need.recompute, ask.train_tokens_s or tokens_s)
    raise SizeError(
        f"with {ask.gpus} GPUs the trainer has {ask.gpus - 1} at most, as explorers need one; of "
        f"{ask.gpu.memory_gib:g} GiB they cannot hold this model: give it more (--gpus) or larger ones (--gpu), lower "
        "trainer.micro_batch_tokens, or train adapters (trainer.lora_rank)"
    )


def _divided(ask: SizingInput, engine: EngineSize, trainer: TrainerPlan) -> tuple[int, float]:
    # Explorers, and samples a second, of the best way to divide the GPUs
    tokens = ask.prompt_tokens + ask.response_tokens
    on_policy = ask.settings.coordinator.max_staleness == 0
    best = (0, 0.0)
    for explorers in range(1, ask.gpus // engine.gpus + 1):
        copies = (ask.gpus - explorers * engine.gpus) // trainer.gpus
        if not copies:
            break
        drawn_s = ask.response_tokens / (explorers * engine.tokens_s * (BUSY_ON_POLICY if on_policy else BUSY))
        trained_s = tokens / (copies * trainer.gpus * trainer.tokens_s)
        rate = 1 / (drawn_s + trained_s if on_policy else max(drawn_s, trained_s))
        if rate > best[1]:
            best = explorers, rate
    if not best[0]:
        raise SizeError(
            f"{ask.gpus} GPUs are too few: an explorer takes {engine.gpus} and a copy of the trainer {trainer.gpus}"
        )
    return best
