"""AdamW through Megatron's optimizer, and its state as named tensors.

That is Megatron's float32 optimizer around torch's AdamW or, with ``trainer.distributed_optimizer`` and with bfloat16
weights in any case, its distributed one, which shards state and update over the data-parallel ranks. With bfloat16 that
keeps float32 master weights; this path is written to Megatron's interface and not run by this project's tests.

State is read from and written to the torch optimizers inside, parameter by parameter: Megatron's own state dictionaries
lose the step counter of torch's AdamW, or make all parameters count on the same one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.training.cpu_platform import on_cpu
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.megatron import (
    DistributedDataParallel,
    OptimizerConfig,
    get_megatron_optimizer,
    optimizers,
)


class AdamW:
    """Updates the weights of one model.

    Args:
        chunks: The model's stages on this rank, each wrapped for data parallelism.
        settings: Rates and decays.
        dtype: Of the weights.
    """

    def __init__(
        self, chunks: Sequence[DistributedDataParallel], settings: TrainerSettings, dtype: torch.dtype
    ) -> None:
        wrapping = chunks[0].ddp_config
        distributed = wrapping.use_distributed_optimizer
        # Else the shards of float32 weights are views with a history, and torch warns of each gradient they are given.
        with torch.no_grad():
            self._megatron = get_megatron_optimizer(
                OptimizerConfig(
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
                ),
                list(chunks),
                # On a CPU all groups are gloo's.
                use_gloo_process_groups=distributed and not on_cpu(),
            )
        for group in self._megatron.param_groups:
            # Megatron marks the parameters that are not to decay and leaves the rest to its scheduler, not used here.
            group["weight_decay"] = settings.weight_decay * group["wd_mult"]
        self._max_grad_norm = settings.max_grad_norm
        self._model_parameters = {id(parameter) for chunk in chunks for parameter in chunk.parameters()}

    def zero_grad(self) -> None:
        """Forgets gradients."""
        self._megatron.zero_grad()

    def step(self, learning_rate: float) -> float:
        """Clips gradients to the configured norm and updates the weights, unless the gradients are not finite.

        Megatron's own ``step`` does the same, but updates in any case.

        Returns:
            The norm of the gradients of all ranks before clipping.
        """
        for group in self._megatron.param_groups:
            group["lr"] = learning_rate
        self._megatron.prepare_grads()
        norm = float(self._megatron.get_grad_norm())
        if math.isfinite(norm):
            for optimizer in self._megatron.chained_optimizers:
                if parameters := optimizer.get_parameters():
                    optimizers.clip_grad_by_total_norm_fp32(parameters, self._max_grad_norm, norm)
            self._megatron.step_with_ready_grads()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Return this rank's state by name, as references.

        Moments, step counters, and master weights where they exist.
        """
        tensors = {}
        for prefix, optimizer, parameter in self._parameters():
            if id(parameter) not in self._model_parameters:
                tensors[f"{prefix}.master"] = parameter.detach()
            for name, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{prefix}.{name}"] = torch.as_tensor(value)
        for number, group in self._groups():
            # Fused optimizers count steps by group.
            if "step" in group:
                tensors[f"{number}.step"] = torch.as_tensor(group["step"])
        return tensors

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over a state that :meth:`state` gave on the same rank of the same layout.

        Raises:
            CheckpointError: It is of another model or layout.
        """
        left = dict(tensors)
        with torch.no_grad():
            for prefix, optimizer, parameter in self._parameters():
                for key in [key for key in left if key.startswith(f"{prefix}.")]:
                    value, name = left.pop(key), key.removeprefix(f"{prefix}.")
                    if value.dim() and value.shape != parameter.shape:
                        raise CheckpointError(f"optimizer state {key} has shape {tuple(value.shape)}, not "
                                              f"{tuple(parameter.shape)}: it is of another model")  # fmt: skip
                    if name == "master":
                        parameter.copy_(value)
                    else:
                        # Step counters stay on the CPU, where torch's AdamW keeps them.
                        optimizer.state[parameter][name] = value.to(parameter.device) if value.dim() else value
            for number, group in self._groups():
                if (step := left.pop(f"{number}.step", None)) is not None:
                    group["step"] = int(step)
        if left:
            raise CheckpointError(f"optimizer state has no parameters for {sorted(left)[:3]}: it is of another model")

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            wrapper.optimizer for wrapper in self._megatron.chained_optimizers if wrapper.optimizer is not None
        ]  # fmt: skip

    def _groups(self) -> Iterator[tuple[str, dict[str, object]]]:
        for o, optimizer in enumerate(self._optimizers()):
            for g, group in enumerate(optimizer.param_groups):
                yield f"{o}.{g}", group

    def _parameters(self) -> Iterator[tuple[str, torch.optim.Optimizer, torch.Tensor]]:
        for o, optimizer in enumerate(self._optimizers()):
            for g, group in enumerate(optimizer.param_groups):
                for p, parameter in enumerate(group["params"]):
                    yield f"{o}.{g}.{p}", optimizer, parameter
