"""The training engine: experiences in, better weights out.

A step trains on one batch::

    groups --> samples with advantages --> shuffled --> mini-batches --> micro-batches --> one update per mini-batch
              (advantages)              (seed, step)                    (packing)

Everything that happens in a step follows from the weights, the optimizer's state, the groups and ``(seed, step)``. On a
CPU, with the same number of threads, a step that is repeated from a checkpoint gives the same weights bit for bit.

Where there are several ranks each builds an engine and makes the same calls with the same groups; see ``parallel``.

A step that raises leaves the weights in an undefined state: make a new engine and load the last checkpoint.

Metrics of a step (means over trained tokens and then over mini-batches, where nothing else is said):

==============================  ======================================================================================
``loss``, ``policy_loss``       see ``losses``
``entropy``                     of the policy, nats
``clip_fraction``               of tokens whose gradient clipping stopped
``ratio_mean``                  probability now over probability under the old policy
``tis_weight_mean``             importance weight between old and rollout policy, before the cap
``tis_truncated_fraction``      of tokens above the cap
``rollout_k3``                  KL(rollout || trained), nats; grows with each update of the step
``mismatch_k3``                 the same before the first update: what engine and trainer disagree by
``kl``                          KL from the reference, nats
``grad_norm``                   before clipping
``learning_rate``               as used
``updates``                     of the weights
``reward_mean``, ``_min``, ``_max``, ``_std``  over all samples with a reward
``advantage_mean``, ``_min``, ``_max``, ``_std``  over trained samples
``samples``, ``samples_trained``, ``groups``, ``groups_skipped``
``tokens``, ``trained_tokens``  all tokens of the batch; tokens that the loss is over
``staleness_min``, ``_mean``, ``_max``  by sample: version trained on, less the oldest version that drew any of it
``micro_batches``               on this rank
``seconds``                     of the step
==============================  ======================================================================================
"""

import functools
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.experience import ExperienceGroup, Float32
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings, required
from trinity_bus.training import checkpoint, model, packing
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.cpu_platform import on_cpu
from trinity_bus.training.errors import CheckpointError, TrainingError, TrainingInterruptedError
from trinity_bus.training.logprobs import vocab_parallel_logprobs
from trinity_bus.training.losses import METRICS, LossConfig, Tokens, grpo_loss
from trinity_bus.training.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    Float16Module,
    PackedSeqParams,
    finalize_model_grads,
    get_forward_backward_func,
)
from trinity_bus.training.optimizer import AdamW
from trinity_bus.training.packing import MicroBatchPlan, PackedArrays, TrainSample
from trinity_bus.training.parallel import Layout, initialize
from trinity_bus.training.qwen3 import Qwen3Shape
from trinity_bus.training.samples import prepare

__all__ = ["TrainingEngine", "TrainingProgress"]


class TrainingEngine:
    """One rank's part of a trainer. Not safe for use by two threads at once, but for :meth:`interrupt`.

    Args:
        settings: What to train and how. ``model_path`` must be set.
        layout: Process groups; by default those that the environment describes, made where they do not exist.

    Raises:
        ConfigError: ``model_path`` is not set.
        ConversionError: The model cannot be read.
        ParallelError: The layout does not fit.
    """

    def __init__(self, settings: TrainerSettings, layout: Layout | None = None) -> None:
        self.settings = settings
        self.source = Path(required(settings.model_path, "trainer.model_path", "to know what to train"))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.shape = Qwen3Shape.read(self.source)
        self.layout = layout or initialize(settings.tensor_parallel, seed=settings.seed)
        self.dtype = _dtype(settings)
        self.progress = TrainingProgress()
        self._model = model.build(self.shape, self.layout, self.dtype)
        model.load(self._model, self.shape, self.layout, self.source)
        self._ddp = self._wrap()
        self._optimizer = AdamW(self._ddp, settings, self.dtype)
        self._reference = self._copy_weights() if settings.kl_coef > 0 else None
        self._run_schedule = get_forward_backward_func()
        self._interrupted = threading.Event()
        self._loss = LossConfig(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            tis_cap=settings.tis_cap,
            kl_coef=settings.kl_coef,
            entropy_coef=settings.entropy_coef,
        )

    # ------------------------------------------------------------------------------------------------ training

    def train_step(self, groups: Sequence[ExperienceGroup]) -> Metrics:
        """Trains on one batch. ``progress`` counts the step and its tokens; the rest of it is the caller's.

        A batch in which no group teaches anything is a step too: it changes no weights.

        Args:
            groups: The batch, in the order of its manifest.

        Returns:
            See the module's docstring.

        Raises:
            TrainingError: A sample does not fit the model, or the gradients are not finite.
            TrainingInterruptedError: :meth:`interrupt` was called.
        """
        began = time.perf_counter()
        batch = prepare(
            groups,
            version=self.progress.version,
            vocabulary=self.shape.vocabulary,
            normalize_std=self.settings.normalize_std,
        )
        learning_rate = self._learning_rate()
        reports: list[Metrics] = []
        if batch.samples:
            samples = self._with_logprobs(batch.samples)
            rng = np.random.default_rng((self.settings.seed, self.progress.step))
            order = rng.permutation(len(samples))
            parts = np.array_split(order, min(self.settings.mini_batches, len(samples)))
            reports = [self._update([samples[i] for i in part], learning_rate) for part in parts]
        self.progress = self.progress.model_copy(
            update={
                "step": self.progress.step + 1,
                "version": self.progress.version + 1,
                "trained_tokens": self.progress.trained_tokens + int(batch.metrics["trained_tokens"]),
            }
        )
        return {
            **batch.metrics,
            **_means(reports),
            "learning_rate": learning_rate,
            "updates": float(len(reports)),
            "seconds": time.perf_counter() - began,
        }

    def interrupt(self) -> None:
        """Makes a running step, or the next, stop between two micro-batches. May be called from any thread."""
        self._interrupted.set()

    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]:
        """Log-probabilities of each sample's response tokens under the present weights.

        Every rank gets those of its own samples and, where there are several data-parallel ranks, of all others.
        """
        found: dict[int, Float32] = {}

        def collect(
            plan: MicroBatchPlan, arrays: PackedArrays, logits: torch.Tensor, *, non_loss_data: bool
        ) -> tuple[MicroBatchPlan, PackedArrays, torch.Tensor]:
            del non_loss_data  # Megatron says so to functions that may also be asked for a loss
            return plan, arrays, self._token_logprobs(logits, arrays)[0]

        with torch.no_grad():
            outputs = self._forward_backward(samples, collect, token_weight=0.0, forward_only=True)
        for plan, arrays, values in outputs:
            mine = [samples[i] for i in plan.samples]
            if plan.counted:
                found |= dict(zip(plan.samples, packing.unpack(values.cpu().numpy(), arrays, mine), strict=True))
        if self.layout.data_group is not None:
            # Plain arrays of known lengths, one collective: what a rank does not have is zero.
            sizes = [len(sample.rollout_logprobs) for sample in samples]
            flat = np.concatenate([found.get(i, np.zeros(n, np.float32)) for i, n in enumerate(sizes)])
            summed = torch.from_numpy(flat).to(self.layout.device)
            dist.all_reduce(summed, group=self.layout.data_group)
            return np.split(summed.cpu().numpy(), np.cumsum(sizes)[:-1])
        return [found[i] for i in range(len(samples))]

    # ------------------------------------------------------------------------------------------------- weights

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights under their Hugging Face names, in a fixed order. All ranks must iterate to the end."""
        yield from model.hf_tensors(self._model, self.shape, self.layout)

    def export_hf(self, path: Path) -> None:
        """Writes the model as a Hugging Face folder, replacing what is there only when the new one is whole."""
        tensors = self.hf_tensors()
        if self.layout.rank == 0:
            partial = path.with_name(f".partial-{path.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            model.write_folder(partial, self.source, tensors, self.dtype)
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
        deque(tensors, maxlen=0)  # the other ranks' part in gathering the weights
        self._barrier()

    def save_checkpoint(self, directory: Path, progress: TrainingProgress) -> Path:
        """Makes everything that a restart needs durable, in one rename; see ``checkpoint``.

        Args:
            directory: The trainer's checkpoint directory, shared by all ranks.
            progress: What to record. Steps, version and tokens are the engine's own count in :attr:`progress`; the
                caller adds where it reads on.

        Returns:
            The checkpoint's folder.
        """
        if progress.step != self.progress.step:
            raise CheckpointError(f"progress says step {progress.step}, the engine is at step {self.progress.step}")
        self.progress = progress
        rank, world = self.layout.rank, self.layout.world_size
        if rank == 0:
            checkpoint.begin(directory, progress.step)
        self._barrier()
        folder = checkpoint.partial_folder(directory, progress.step)
        state = {f"optimizer.{name}": tensor for name, tensor in self._optimizer.state().items()}
        state["rng.torch"] = torch.get_rng_state()
        if not on_cpu():
            state["rng.cuda"] = torch.cuda.get_rng_state()
        save_file({name: tensor.cpu().contiguous() for name, tensor in state.items()}, folder / self._state_file())
        tensors = self.hf_tensors()
        if rank == 0:
            model.write_folder(folder, self.source, tensors, self.dtype)
        deque(tensors, maxlen=0)  # the other ranks' part in gathering the weights
        self._barrier()
        if rank == 0:
            checkpoint.commit(
                directory,
                progress,
                world_size=world,
                tensor_parallel=self.layout.tensor_parallel,
                dtype=str(self.dtype),
                keep=self.settings.keep_checkpoints,
            )
        self._barrier()
        return directory / folder.name.removeprefix(checkpoint.PARTIAL)

    def load_latest(self, directory: Path) -> TrainingProgress | None:
        """Goes back to the newest checkpoint; nothing changes where there is none.

        Raises:
            CheckpointError: It is damaged or does not fit.
        """
        folder = checkpoint.latest(directory)
        if folder is None:
            return None
        progress = checkpoint.read_progress(
            folder,
            world_size=self.layout.world_size,
            tensor_parallel=self.layout.tensor_parallel,
            dtype=str(self.dtype),
        )
        try:
            state = load_file(folder / self._state_file())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / self._state_file()} cannot be read: {error}") from error
        model.load(self._model, self.shape, self.layout, folder)
        torch.set_rng_state(state.pop("rng.torch"))
        if not on_cpu():
            torch.cuda.set_rng_state(state.pop("rng.cuda"))
        self._optimizer.load_state({name.removeprefix("optimizer."): tensor for name, tensor in state.items()})
        self.progress = progress
        return progress

    # ------------------------------------------------------------------------------------------------ internals

    def _wrap(self) -> DistributedDataParallel:
        """The model with buffers for its gradients, float32, summed over data-parallel ranks."""
        config = self._model.config
        distributed = self.dtype is torch.bfloat16
        wrapped = Float16Module(config, self._model) if distributed else self._model
        ddp = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                use_distributed_optimizer=distributed,
                overlap_grad_reduce=distributed,
                overlap_param_gather=distributed,
            ),
            wrapped,
        )
        # The token count that Megatron would divide by is left out: the loss carries its own normalisation.
        config.finalize_model_grads_func = lambda chunks, _tokens=None, **kwargs: finalize_model_grads(
            chunks, None, **kwargs
        )
        config.no_sync_func = ddp.no_sync
        return ddp

    def _learning_rate(self) -> float:
        settings = self.settings
        if self.progress.step >= settings.warmup_steps:
            return settings.learning_rate
        return settings.learning_rate * (self.progress.step + 1) / settings.warmup_steps

    def _with_logprobs(self, samples: list[TrainSample]) -> list[TrainSample]:
        """Adds reference and old log-probabilities where the settings want them computed here."""
        if self._reference is not None:
            own = self._copy_weights()
            self._set_weights(self._reference)
            references = self.logprobs(samples)
            self._set_weights(own)
            samples = [s.with_ref_logprobs(r) for s, r in zip(samples, references, strict=True)]
        # With one update the old policy is the one whose gradient is taken; the loss sees to that.
        if self.settings.old_logprobs == "recompute" and self.settings.mini_batches > 1:
            old = self.logprobs(samples)
            samples = [s.with_old_logprobs(o) for s, o in zip(samples, old, strict=True)]
        return samples

    def _update(self, samples: list[TrainSample], learning_rate: float) -> Metrics:
        """One update of the weights."""
        own_policy_is_old = self.settings.old_logprobs == "recompute" and self.settings.mini_batches == 1

        def loss(_: MicroBatchPlan, arrays: PackedArrays, logits: torch.Tensor) -> Any:
            logprobs, entropy = self._token_logprobs(logits, arrays)
            tokens = Tokens(
                logprobs=logprobs,
                entropy=entropy,
                old_logprobs=logprobs.detach() if own_policy_is_old else self._tensor(arrays.old_logprobs),
                rollout_logprobs=self._tensor(arrays.rollout_logprobs),
                ref_logprobs=None if arrays.ref_logprobs is None else self._tensor(arrays.ref_logprobs),
                advantages=self._tensor(arrays.advantages),
                weight=self._tensor(arrays.weight),
            )
            value, metrics = grpo_loss(tokens, self._loss)
            # Three values: Megatron then neither scales the loss nor divides by the second, a token count.
            return value, torch.ones((), dtype=torch.int, device=value.device), metrics

        trained_tokens = sum(sample.trained_tokens for sample in samples)
        self._ddp.zero_grad_buffer()
        self._optimizer.zero_grad()
        outputs = self._forward_backward(samples, loss, token_weight=1.0 / trained_tokens, forward_only=False)
        sums = torch.stack(outputs).sum(0)
        if self.layout.data_group is not None:
            dist.all_reduce(sums, group=self.layout.data_group)
        metrics: Metrics = dict(zip(METRICS, sums.tolist(), strict=True))
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(f"the loss of step {self.progress.step + 1} is {metrics['loss']}: nothing was updated")
        norm = self._optimizer.step(learning_rate)
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient norm of step {self.progress.step + 1} is {norm}: the weights in memory are void, the "
                "checkpoints are not; lower TRINITY_BUS_TRAINER__LEARNING_RATE, or look for broken logprobs"
            )
        return {**metrics, "grad_norm": norm, "micro_batches": float(len(outputs))}

    def _forward_backward(
        self,
        samples: Sequence[TrainSample],
        function: Callable[..., Any],
        *,
        token_weight: float,
        forward_only: bool,
    ) -> list[Any]:
        """Runs this rank's micro-batches; gives what ``function(plan, arrays, logits)`` gave for each."""
        lengths = [len(sample.tokens) for sample in samples]
        budget, ranks = self.settings.micro_batch_tokens, self.layout.data_parallel
        plans = packing.plan(lengths, budget, ranks=ranks)[self.layout.data_rank]

        def step(iterator: Iterator[MicroBatchPlan], wrapped: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            if self._interrupted.is_set():
                raise TrainingInterruptedError(f"step {self.progress.step + 1} was abandoned on request")
            plan = next(iterator)
            arrays = packing.pack(
                [samples[i] for i in plan.samples], token_weight=token_weight if plan.counted else 0.0
            )
            bounds = self._tensor(arrays.bounds)
            packed = PackedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=bounds,
                cu_seqlens_kv=bounds,
                max_seqlen_q=arrays.longest,
                max_seqlen_kv=arrays.longest,
            )
            tokens, positions = self._tensor(arrays.tokens)[None], self._tensor(arrays.positions)[None]
            logits = wrapped(tokens, positions, None, packed_seq_params=packed)
            return logits, functools.partial(function, plan, arrays)

        result: list[Any] = self._run_schedule(
            forward_step_func=step,
            data_iterator=iter(plans),
            model=[self._ddp],
            num_microbatches=len(plans),
            seq_length=max(budget, *lengths),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return result

    def _token_logprobs(self, logits: torch.Tensor, arrays: PackedArrays) -> tuple[torch.Tensor, torch.Tensor]:
        return vocab_parallel_logprobs(
            logits[0],
            self._tensor(arrays.targets),
            vocabulary=self.shape.vocabulary,
            temperature=self.settings.temperature,
            group=self.layout.tensor_group,
        )

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.layout.device)

    def _copy_weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._model.parameters()]

    def _set_weights(self, weights: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self._model.parameters(), weights, strict=True):
                parameter.copy_(weight)

    def _state_file(self) -> str:
        return f"optimizer-{self.layout.rank:05d}-of-{self.layout.world_size:05d}.safetensors"

    def _barrier(self) -> None:
        if self.layout.world_size > 1:
            dist.barrier()


def _means(reports: Sequence[Metrics]) -> Metrics:
    if not reports:
        return {}
    means = {name: math.fsum(report[name] for report in reports) / len(reports) for name in reports[0]}
    return {**means, "mismatch_k3": reports[0]["rollout_k3"]}


def _dtype(settings: TrainerSettings) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if on_cpu() else torch.bfloat16
    if settings.dtype == "bfloat16" and on_cpu():
        raise TrainingError("TRINITY_BUS_TRAINER__DTYPE=bfloat16 needs a GPU; on a CPU use float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]
