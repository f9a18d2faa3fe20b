"""Which layouts fit a model: checked before anything is loaded. Pure."""

from math import gcd

from trinity_bus.config import TrainerSettings
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import ModelShape


def check(settings: TrainerSettings, shape: ModelShape, engine: str) -> None:
    """ParallelError where a model cannot be trained in this layout; the message says what could be."""
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    width = "width of an expert" if shape.experts else "MLP width"
    for name, size in (("heads", shape.heads), ("key-value heads", shape.groups), (width, shape.intermediate)):
        if size % tensor:
            all_three = gcd(shape.heads, shape.groups, shape.intermediate)
            raise _does_not_divide(f"tensor_parallel={tensor}", f"the model's {size} {name}", all_three)
    if shape.padded_vocabulary(tensor) // tensor * (tensor - 1) >= shape.vocabulary:
        raise ParallelError(f"a vocabulary of {shape.vocabulary} leaves ranks of {tensor} without a token")
    if settings.sequence_parallel and tensor == 1:
        raise ParallelError("sequence_parallel=true needs tensor_parallel above 1, by which the tokens are split")
    if shape.experts and tensor > 1 and not settings.sequence_parallel:
        raise ParallelError(f"tensor_parallel={tensor} of a model with experts needs sequence_parallel=true")
    if shape.layers % pipeline:
        raise _does_not_divide(f"pipeline_parallel={pipeline}", f"the model's {shape.layers} layers", shape.layers)
    _check_experts(settings, shape)
    if settings.lora_rank and shape.experts:
        raise ParallelError(
            f"lora_rank={settings.lora_rank}: a model with experts has no adapters here; 0 can be trained"
        )
    if settings.router_replay:
        _check_replay(settings, shape, engine)


def _check_replay(settings: TrainerSettings, shape: ModelShape, engine: str) -> None:
    if not shape.experts:
        raise ParallelError("router_replay=true: the model has no experts, and so no router")
    if engine != "megatron":
        raise ParallelError(f"router_replay=true: engine={engine} cannot do it; megatron can")
    if settings.recompute:
        raise ParallelError("router_replay=true: with recompute=true a router would choose anew; false can be trained")


def _check_experts(settings: TrainerSettings, shape: ModelShape) -> None:
    experts, copies = settings.expert_parallel, settings.context_parallel * settings.data_parallel
    asked = f"expert_parallel={experts}"
    if experts > 1 and not shape.experts:
        raise ParallelError(f"{asked}: the model has no experts; 1 can be trained")
    if shape.experts % experts:
        raise _does_not_divide(asked, f"the model's {shape.experts} experts", shape.experts)
    if copies % experts:
        raise _does_not_divide(asked, f"context_parallel times data_parallel, {copies}", gcd(copies, shape.experts))


def _does_not_divide(asked: str, what: str, of: int) -> ParallelError:
    known = ", ".join(str(number) for number in range(1, of + 1) if of % number == 0)
    return ParallelError(f"{asked} does not divide {what}; {known} can be trained")
