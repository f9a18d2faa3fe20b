"""A model in memory, and passes over it: forward alone, or forward and backward, in packed micro-batches.

The model is wrapped for data parallelism: gradients are kept in float32 and summed over the ranks that hold the same
shard. On one rank the wrapper is there too; a step is the same everywhere.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from schemas.experience import Float32
from trinity_bus.training import model, packing
from trinity_bus.training.errors import TrainingInterruptedError
from trinity_bus.training.families import ModelShape
from trinity_bus.training.logprobs import vocab_parallel_logprobs
from trinity_bus.training.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    Float16Module,
    GPTModel,
    PackedSeqParams,
    finalize_model_grads,
    get_forward_backward_func,
)
from trinity_bus.training.packing import MicroBatchPlan, PackedArrays, TrainSample
from trinity_bus.training.parallel import Layout


class ModelRunner:
    """Holds a model and runs it.

    Args:
        source: Folder with the weights.
        shape: What its configuration says.
        layout: Where this process stands.
        dtype: Of weights and activations.
        micro_batch_tokens: Tokens that go through at once.
        temperature: What logits are divided by.
    """

    def __init__(
        self,
        source: Path,
        shape: ModelShape,
        layout: Layout,
        *,
        dtype: torch.dtype,
        micro_batch_tokens: int,
        temperature: float,
    ) -> None:
        self._shape = shape
        self._layout = layout
        self._budget = micro_batch_tokens
        self._temperature = temperature
        self._model = model.build(shape, layout, dtype)
        self.load(source)
        self.wrapped = _wrapped(self._model, distributed_optimizer=dtype is torch.bfloat16)
        self._schedule = get_forward_backward_func()
        self._interrupted = threading.Event()

    def load(self, folder: Path) -> None:
        """Fill the model from a Hugging Face folder; see :func:`trinity_bus.training.model.load`."""
        model.load(self._model, self._shape, self._layout, folder)

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See :func:`trinity_bus.training.model.hf_tensors`."""
        return model.hf_tensors(self._model, self._shape, self._layout)

    def copy_weights(self) -> list[torch.Tensor]:
        """Return a copy of this rank's weights."""
        return [parameter.detach().clone() for parameter in self._model.parameters()]

    def set_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Put a copy back."""
        with torch.no_grad():
            for parameter, weight in zip(self._model.parameters(), weights, strict=True):
                parameter.copy_(weight)

    def interrupt(self) -> None:
        """Make a running pass, or the next, raise between two micro-batches. May be called from any thread."""
        self._interrupted.set()

    def tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return an array on the device."""
        return torch.from_numpy(array).to(self._layout.device)

    def token_logprobs(self, logits: torch.Tensor, arrays: PackedArrays) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each position's target, and the entropy there, both [tokens]."""
        return vocab_parallel_logprobs(
            logits[0],
            self.tensor(arrays.targets),
            vocabulary=self._shape.vocabulary,
            temperature=self._temperature,
            group=self._layout.tensor_group,
        )

    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]:
        """Log-probabilities of each sample's response tokens under the present weights.

        Every rank gets those of all samples, whichever rank has computed them.
        """
        found: dict[int, Float32] = {}

        def collect(
            plan: MicroBatchPlan, arrays: PackedArrays, logits: torch.Tensor, *, non_loss_data: bool
        ) -> tuple[MicroBatchPlan, PackedArrays, torch.Tensor]:
            del non_loss_data  # Megatron says so to functions that may also be asked for a loss
            return plan, arrays, self.token_logprobs(logits, arrays)[0]

        with torch.no_grad():
            outputs = self.run(samples, collect, token_weight=0.0, forward_only=True)
        for plan, arrays, values in outputs:
            mine = [samples[i] for i in plan.samples]
            if plan.counted:
                found |= dict(zip(plan.samples, packing.unpack(values.cpu().numpy(), arrays, mine), strict=True))
        groups = [group for group in (self._layout.data_group, self._layout.pipeline_group) if group is not None]
        if groups:
            # Plain arrays of known lengths, one collective for each group: what a rank does not have is zero.
            sizes = [len(sample.rollout_logprobs) for sample in samples]
            flat = np.concatenate([found.get(i, np.zeros(n, np.float32)) for i, n in enumerate(sizes)])
            summed = torch.from_numpy(flat).to(self._layout.device)
            for group in groups:
                dist.all_reduce(summed, group=group)
            return np.split(summed.cpu().numpy(), np.cumsum(sizes)[:-1])
        return [found[i] for i in range(len(samples))]

    def run(
        self,
        samples: Sequence[TrainSample],
        function: Callable[..., Any],
        *,
        token_weight: float,
        forward_only: bool,
    ) -> list[Any]:
        """Run this rank's part of the samples, in micro-batches.

        Args:
            samples: Those of all data-parallel ranks.
            function: Called with ``(plan, arrays, logits)`` of each micro-batch. Where gradients are wanted it returns
                Megatron's triple of loss, token count and anything; else, with ``non_loss_data=True``, anything.
            token_weight: See :func:`trinity_bus.training.packing.pack`.
            forward_only: Whether to leave out the backward pass. Else gradients are added to the model's, and summed
                over ranks at the end.

        Returns:
            The "anything" of each micro-batch; nothing on a stage of a pipeline that is not the last.

        Raises:
            TrainingInterruptedError: :meth:`interrupt` was called.
        """
        lengths = [len(sample.tokens) for sample in samples]
        budget, ranks = self._budget, self._layout.data_parallel
        plans = packing.plan(lengths, budget, ranks=ranks)[self._layout.data_rank]

        def step(iterator: Iterator[MicroBatchPlan], network: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            if self._interrupted.is_set():
                raise TrainingInterruptedError("a pass was abandoned on request")
            plan = next(iterator)
            arrays = packing.pack(
                [samples[i] for i in plan.samples], token_weight=token_weight if plan.counted else 0.0
            )
            bounds = self.tensor(arrays.bounds)
            packed = PackedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=bounds,
                cu_seqlens_kv=bounds,
                max_seqlen_q=arrays.longest,
                max_seqlen_kv=arrays.longest,
            )
            tokens, positions = self.tensor(arrays.tokens)[None], self.tensor(arrays.positions)[None]
            logits = network(tokens, positions, None, packed_seq_params=packed)
            return logits, functools.partial(function, plan, arrays)

        result: list[Any] = self._schedule(
            forward_step_func=step,
            data_iterator=iter(plans),
            model=[self.wrapped],
            num_microbatches=len(plans),
            seq_length=max(budget, *lengths),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return result


def _wrapped(model: GPTModel, *, distributed_optimizer: bool) -> DistributedDataParallel:
    """Return the model with buffers for its gradients, float32, summed over data-parallel ranks."""
    config = model.config
    ddp = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=distributed_optimizer,
            overlap_grad_reduce=distributed_optimizer,
            # Weights are read between steps, by exports and checkpoints: they must be whole by then.
            overlap_param_gather=False,
        ),
        Float16Module(config, model) if distributed_optimizer else model,
    )
    # The token count that Megatron would divide by is left out: the loss carries its own normalisation.
    config.finalize_model_grads_func = lambda chunks, _tokens=None, **kwargs: finalize_model_grads(
        chunks, None, **kwargs
    )
    config.no_sync_func = ddp.no_sync
    return ddp
