"""LoRA on Megatron's layers, in every layout: small matrices beside the linear layers, which are frozen.

Megatron joins several projections into one layer (query, key and value; gate and up). Each has an ``A`` and a ``B`` of
its own, as in PEFT's format, and what they add is joined as the layer joins its own outputs. Tensor parallelism splits
them as it splits the layer::

    split by outputs    A on every rank, B by rows       A x is copied to all ranks, or gathered from all
    split by inputs     A by columns, B on every rank    A x is summed over all ranks, or scattered to them

(the latter with sequence parallelism). See ``adapters`` for what is added and what becomes of it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings
from trinity_bus.training import tensors
from trinity_bus.training.engines.adapters import initial_a, peft_names
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.families import ModelShape
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import core

_GOLDEN: Final = 40503  # 2^16 over the golden ratio, and odd
_LAYERS: Final = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")


class Adapter(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """``weight`` is this rank's shard of one linear layer."""

    def __init__(
        self, name: str, weight: torch.Tensor, shape: ModelShape, layout: Layout, settings: TrainerSettings
    ) -> None:
        super().__init__()
        self.projections = [hf_name.removesuffix(".weight") for hf_name in tensors.hf_names(name)]
        self.by_inputs = tensors.split_axis(name) == 1
        self._tokens_split, self._group = layout.sequence_parallel, layout.tensor_group
        self._groups = shape.groups // layout.tensor_parallel if len(self.projections) == 3 else 1
        self._part, self._parts = layout.tensor_rank, layout.tensor_parallel
        self._rank, self._scale = settings.lora_rank, settings.lora_alpha / settings.lora_rank
        ranks, (out, into) = layout.tensor_parallel, weight.shape
        features = into * ranks if self.by_inputs else into
        a = torch.cat([initial_a(projection, features, settings) for projection in self.projections])
        if self.by_inputs:
            a = a.chunk(ranks, 1)[self._part].clone()
        self.a = torch.nn.Parameter(a.to(weight))
        per_group = {1: [out], 2: [out // 2] * 2}.get(len(self.projections)) or [
            shape.heads // ranks * shape.head_dim,
            *[self._groups * shape.head_dim] * 2,
        ]
        self.b = torch.nn.ParameterList(torch.nn.Parameter(weight.new_zeros(rows, self._rank)) for rows in per_group)
        for parameter, is_split, axis in ((self.a, self.by_inputs, 1), *((b, not self.by_inputs, 0) for b in self.b)):
            # What is on every rank sees a part of the tokens where these are split: its gradients are summed.
            parameter.sequence_parallel = layout.sequence_parallel and not is_split
            if is_split and ranks > 1:
                core.set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=axis, stride=1)
            core.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to the layer's output, [tokens, 1, features of this rank], for its input."""
        inner = torch.nn.functional.linear(x, self.a)
        if self._group is not None:
            way = (self.by_inputs, self._tokens_split)
            inner = {
                (False, False): core.mappings.copy_to_tensor_model_parallel_region,
                (False, True): core.mappings.gather_from_sequence_parallel_region,
                (True, False): core.mappings.reduce_from_tensor_model_parallel_region,
                (True, True): core.mappings.reduce_scatter_to_sequence_parallel_region,
            }[way](inner, group=self._group)
        # Of all that is computed here this is the smallest.
        parts = zip((self._scale * inner).split(self._rank, -1), self.b, strict=True)
        return self._joined([torch.nn.functional.linear(h, b) for h, b in parts], -1)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def added(self) -> torch.Tensor:
        """Return what the adapter adds to the weight, float32."""
        parts = zip(self.b, self.a.float().split(self._rank), strict=True)
        return self._joined([b.float() @ a for b, a in parts], 0).mul_(self._scale)

    def of_projections(
        self, of: Callable[[torch.nn.Parameter], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor, int | None]]:
        """Return what belongs to each of PEFT's tensors: the name, this rank's part, along which axis; None: all."""
        for projection, a, b in zip(self.projections, of(self.a).split(self._rank), self.b, strict=True):
            name_of_a, name_of_b = peft_names(projection)
            yield name_of_a, a, 1 if self.by_inputs else None
            yield name_of_b, of(b), None if self.by_inputs else 0

    def shards_of(self, read: Callable[[str], torch.Tensor]) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return the parameters, each with this rank's part of what is read by PEFT's names."""
        names_of_a, names_of_b = zip(*map(peft_names, self.projections), strict=True)
        a = torch.cat([read(name) for name in names_of_a])
        yield self.a, a.chunk(self._parts, 1)[self._part] if self.by_inputs else a
        for parameter, b in zip(self.b, map(read, names_of_b), strict=True):
            yield parameter, b if self.by_inputs else b.chunk(self._parts)[self._part]

    def _joined(self, parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        # Group by group
        axis %= parts[0].dim()
        return torch.cat([part.unflatten(axis, (self._groups, -1)) for part in parts], axis + 1).flatten(axis, axis + 1)


class Adapters:
    def __init__(self, model: core.GPTModel, shape: ModelShape, layout: Layout, settings: TrainerSettings) -> None:
        self._shape, self._layout = shape, layout
        self._of: dict[tuple[int, str], Adapter] = {}
        self._of_weight: dict[torch.nn.Parameter, Adapter] = {}
        self._layers = shape.layers // layout.pipeline_parallel
        model.requires_grad_(False)
        if layout.pipeline_rank == 0:
            # Else nothing that comes before the first adapter would have a history to go back through.
            model.embedding.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
        for number, layer in enumerate(model.decoder.layers, layout.pipeline_rank * self._layers):
            for path in _LAYERS:
                self._attach(number, path, layer.get_submodule(path), settings)

    def _attach(self, number: int, path: str, linear: Any, settings: TrainerSettings) -> None:
        name = f"decoder.layers.{number}.{path}.weight"
        adapter = Adapter(name, linear.weight, self._shape, self._layout, settings)
        linear.adapter = adapter
        linear.register_forward_pre_hook(lambda _module, inputs: (_as_matrix(inputs[0]), *inputs[1:]))
        linear.register_forward_hook(lambda _module, inputs, output: (_sum(output[0], adapter(inputs[0])), *output[1:]))
        self._of[number, path] = self._of_weight[linear.weight] = adapter

    def merged(self, weight: torch.nn.Parameter) -> torch.Tensor:
        """Return this rank's shard with what is added to it, float32; to be rounded when it is whole."""
        whole, adapter = weight.detach().float(), self._of_weight.get(weight)
        return whole if adapter is None else whole + adapter.added()

    def tensors(
        self, of: Callable[[torch.nn.Parameter], torch.Tensor] = torch.Tensor.detach, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the adapter, or ``of`` each parameter, by PEFT's names, whole. A collective."""
        layout = self._layout
        first = layout.pipeline_rank * self._layers
        for number in range(self._shape.layers):
            stage = number // self._layers
            own = stage == layout.pipeline_rank
            for path in _LAYERS:
                # Of another rank's layer all is as of one of this rank's, but the number and the content.
                adapter = self._of[number if own else first, path]
                for name, tensor, axis in adapter.of_projections(of if own else partial(torch.empty_like, dtype=dtype)):
                    whole = tensor.detach().contiguous()
                    if (stages := layout.pipeline_group) is not None:
                        dist.broadcast(whole, src=layout.rank_of_stage(stage), group=stages)
                    if (shards := layout.tensor_group) is not None and axis is not None:
                        parts = [torch.empty_like(whole) for _ in range(layout.tensor_parallel)]
                        dist.all_gather(parts, whole, group=shards)
                        whole = torch.cat(parts, axis)
                    yield name if own else name.replace(f".layers.{first}.", f".layers.{number}.", 1), whole

    def shards_of(
        self, read: Callable[[str], torch.Tensor], folder: Path
    ) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return this rank's parameters, each with its shard of what is read by PEFT's names, whole."""
        for adapter in self._of.values():
            for parameter, shard in adapter.shards_of(read):
                if shard.shape != parameter.shape:
                    raise CheckpointError(
                        f"{folder}: the adapter of {adapter.projections} {tuple(shard.shape)} is of another model"
                    )
                yield parameter, shard


def dithered(whole: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to bfloat16 up as often as it is nearer to the upper neighbour; to other types as torch does.

    What an adapter adds to a weight is mostly less than half the distance to the next bfloat16. Rounded to the nearest
    it is lost, and engines sample from a policy that lags behind the trained one. The place of a weight alone decides
    what is rounded up (a Weyl sequence of the golden ratio), so one to which nothing is added stays, and one that has
    not changed since the last version is published as in that. ``whole`` has no shards, so all layouts give the same.
    """
    if dtype is not torch.bfloat16:
        return whole.to(dtype)
    bits = torch.arange(whole.numel(), device=whole.device, dtype=torch.int32).mul_(_GOLDEN).bitwise_and_(0xFFFF)
    # The upper half of a float32's bits is the bfloat16 below it in size, the lower half its share of the step.
    bits.add_(whole.contiguous().view(torch.int32).view(-1)).bitwise_and_(-0x10000)
    rounded = bits.view(torch.float32).view(whole.shape)
    return torch.where(whole.isfinite(), rounded, whole).to(dtype)


def _sum(output: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    total = output + added
    if total.requires_grad:
        total.register_hook(_as_matrix)
    return total


def _as_matrix(x: torch.Tensor) -> torch.Tensor:
    # Megatron multiplies what is [tokens, 1, features], and its gradients, with the frozen weight. torch copies the
    # weight for each token there, unless the strides are those of a matrix of tokens.
    return x.reshape(-1, x.shape[-1]).view(x.shape)
