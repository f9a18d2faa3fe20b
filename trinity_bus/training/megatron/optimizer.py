"""AdamW through Megatron's optimizer, and its state as named tensors.

That is Megatron's float32 optimizer around torch's AdamW or, with ``trainer.distributed_optimizer`` and with bfloat16
weights in any case, its distributed one, which shards state and update over the data-parallel ranks, and keeps float32
master weights beside bfloat16.

State is read from and written to the torch optimizers inside, weight by weight and in the weight's shape, whatever part
of it this rank has: so it can be read in any layout. Megatron's own state dictionaries lose the step counter of torch's
AdamW, or make all parameters count on the same one.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings
from trinity_bus.config.values import unknown_options
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.megatron import core
from trinity_bus.training.megatron.cpu_platform import on_cpu


@dataclass(frozen=True, slots=True)
class _Place:
    optimizer: torch.optim.Optimizer
    group: dict[str, Any]
    # That the optimizer updates: the weight, or its own copy or part of it
    parameter: torch.Tensor
    # Which part of the weight, flattened; None for all of it
    span: slice | None = None

    def value(self, kind: str) -> torch.Tensor:
        if kind == "master":
            return self.parameter.detach()
        value: torch.Tensor = self.optimizer.state[self.parameter][kind]
        return value


class AdamW:
    def __init__(self, network: core.DistributedDataParallel, settings: TrainerSettings, dtype: torch.dtype) -> None:
        wrapping = network.ddp_config
        distributed = wrapping.use_distributed_optimizer
        options: dict[str, Any] = dict(settings.optimizer_options)
        if wrong := unknown_options(options, [field.name for field in fields(core.OptimizerConfig)]):
            raise TrainingError(f"trainer.optimizer_options: {wrong}, as a field of Megatron's OptimizerConfig")
        # Else the shards of float32 weights are views with a history, and torch warns of each gradient they are given.
        with torch.no_grad():
            self._megatron = core.get_megatron_optimizer(
                core.OptimizerConfig(
                    optimizer="adam",
                    lr=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    decoupled_weight_decay=True,
                    adam_beta1=settings.adam_beta1,
                    adam_beta2=settings.adam_beta2,
                    clip_grad=settings.max_grad_norm,
                    params_dtype=dtype,
                    bf16=dtype is torch.bfloat16,
                    use_distributed_optimizer=distributed,
                    overlap_param_gather=wrapping.overlap_param_gather,
                    **options,
                ),
                [network],
                # On a CPU all groups are gloo's.
                use_gloo_process_groups=distributed and not on_cpu(),
            )
        for group in self._megatron.param_groups:
            # Megatron marks the parameters that are not to decay and leaves the rest to its scheduler, not used here.
            group["weight_decay"] = settings.weight_decay * group["wd_mult"]
            if not on_cpu() and "fused" in group:
                # One kernel for all that is read and written of a weight. The default makes lists of copies, as large
                # as a shard, while it runs. On a CPU it gains nothing.
                group |= {"fused": True, "foreach": False}
        self._max_grad_norm = settings.max_grad_norm
        self._distributed = distributed
        self._has_masters = dtype is torch.bfloat16
        self._places = self._find_places()
        self._data_groups = self._find_data_groups()
        self.updates = 0

    def zero_grad(self) -> None:
        self._megatron.zero_grad()

    def step(self, learning_rate: float) -> float:
        """Update as Megatron does, but not with gradients that are not finite; return their norm before clipping."""
        for group in self._megatron.param_groups:
            group["lr"] = learning_rate
        self._megatron.prepare_grads()
        norm = float(self._megatron.get_grad_norm())
        if math.isfinite(norm):
            for optimizer in self._megatron.chained_optimizers:
                if parameters := optimizer.get_parameters():
                    core.optimizers.clip_grad_by_total_norm_fp32(parameters, self._max_grad_norm, norm)
            self._megatron.step_with_ready_grads()
            self.updates += 1
        return norm

    @property
    def kinds(self) -> tuple[str, ...]:
        """What there is of state for each weight, the same on all ranks; nothing before the first update."""
        moments = ("exp_avg", "exp_avg_sq") if self.updates else ()
        return (*moments, "master") if self._has_masters else moments

    def state_of(self, weight: torch.nn.Parameter, kind: str) -> torch.Tensor:
        """Return a weight's state in its shape; where that is divided among data-parallel ranks, a collective."""
        place = self._places.get(weight)
        if place is not None and place.span is None:
            return place.value(kind)
        whole = torch.zeros(weight.numel(), dtype=torch.float32, device=weight.device)
        if place is not None:
            whole[place.span] = place.value(kind).flatten()
        # As integers: to add zero to a float loses the sign of a zero.
        dist.all_reduce(whole.view(torch.int32), group=self._data_groups[weight])
        return whole.view(weight.shape)

    def load_state_of(self, weight: torch.nn.Parameter, kind: str, value: torch.Tensor) -> None:
        """Take over what :meth:`state_of` gave, in any layout; :attr:`updates` is to be set before."""
        place = self._places.get(weight)
        if place is None:
            return
        part = value if place.span is None else value.flatten()[place.span]
        if kind == "master":
            with torch.no_grad():
                place.parameter.copy_(part)
            return
        state = place.optimizer.state[place.parameter]
        state[kind] = part.to(place.parameter.device, copy=True).contiguous()
        if isinstance(place.optimizer, torch.optim.Adam):
            # Where torch's AdamW keeps it; Transformer Engine's counts by group.
            where = place.parameter.device if place.group.get("fused") else "cpu"
            state["step"] = torch.tensor(float(self.updates), device=where)
        else:
            place.group["step"] = self.updates

    def _find_places(self) -> dict[torch.nn.Parameter, _Place]:
        found = {}
        for wrapper in self._megatron.chained_optimizers:
            optimizer = wrapper.optimizer
            if optimizer is None:
                continue
            if self._distributed:
                for weight, (group, index) in wrapper.model_param_group_index_map.items():
                    span = wrapper._get_model_param_range_map(weight)["param"]  # noqa: SLF001 - there is no other word of it
                    where = optimizer.param_groups[group]
                    found[weight] = _Place(optimizer, where, where["params"][index], slice(span.start, span.end))
            else:
                for group in optimizer.param_groups:
                    found |= {weight: _Place(optimizer, group, weight) for weight in group["params"]}
        return found

    def _find_data_groups(self) -> dict[torch.nn.Parameter, dist.ProcessGroup]:
        # The ranks among which the state of each weight of this rank is divided
        if not self._distributed:
            return {}
        return {
            weight: buffer.data_parallel_group
            for wrapper in self._megatron.chained_optimizers
            for buffer in wrapper.buffers
            for weight in buffer.params
        }
