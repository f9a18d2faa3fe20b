"""The training engine: experiences in, better weights out.

A step trains on one batch::

    groups --> samples with advantages --> shuffled --> mini-batches --> micro-batches --> one update per mini-batch
              (advantages)              (seed, step)                    (packing)

Everything that happens in a step follows from the weights, the optimizer's state, the groups and ``(seed, step)``. On a
CPU, with the same number of threads, a step that is repeated from a checkpoint gives the same weights bit for bit.

Where there are several ranks each builds an engine and makes the same calls with the same groups; see ``parallel``, and
``multi_rank_engine`` for a service that sees to it.

A step that raises leaves the weights in an undefined state: make a new engine and load the last checkpoint.

Metrics of a step (means over trained tokens and then over mini-batches, where nothing else is said):

==============================  ======================================================================================
``loss``, ``policy_loss``       see ``objectives.objective``
``entropy``                     of the policy, nats
``clip_fraction``               of tokens whose gradient clipping stopped (ppo, gspo)
``ratio_mean``                  probability now over probability under the old policy (ppo, gspo)
``importance_weight_mean``      probability under the old policy over that under the rollout policy, before any cap
``importance_limited_fraction`` of tokens whose weight the correction cut or set to 0
``rollout_k3``                  KL(rollout || trained), nats; grows with each update of the step
``mismatch_k3``                 the same before the first update: what engine and trainer disagree by
``kl``                          KL from the reference, nats
``grad_norm``                   before clipping
``learning_rate``               as used
``updates``                     of the weights
``reward_mean``, ``_min``, ``_max``, ``_std``  over all samples with a reward
``advantage_mean``, ``_min``, ``_max``, ``_std``  over trained samples
``samples``, ``samples_trained``, ``groups``, ``groups_skipped``
``samples_left_out``            flawed ones, see ``schemas.trainable``; ``samples_left_out/<kind>`` where there are some
``tokens``, ``trained_tokens``  all tokens of the batch; tokens that the loss is over
``staleness_min``, ``_mean``, ``_max``  by sample: version trained on, less the oldest version that drew any of it
``micro_batches``               on this rank
``seconds``                     of the step
==============================  ======================================================================================
"""

import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.experience import ExperienceGroup
from schemas.record import Metrics
from schemas.trainable import Bounds
from trinity_bus.config import TrainerSettings, required
from trinity_bus.training import checkpoint, model, parallel
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.cpu_platform import on_cpu
from trinity_bus.training.errors import CheckpointError, TrainingError
from trinity_bus.training.families import read_shape
from trinity_bus.training.objectives.losses.loss import Tokens
from trinity_bus.training.objectives.needs import Need
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.optimizer import AdamW
from trinity_bus.training.packing import MicroBatchPlan, PackedArrays, TrainSample
from trinity_bus.training.parallel import Layout, initialize
from trinity_bus.training.runner import ModelRunner
from trinity_bus.training.samples import prepare

__all__ = ["TrainingEngine", "TrainingProgress"]

log = logging.getLogger(__name__)

STATE = "optimizer-"
"""First part of the names of each rank's own files."""
MAX_SHOWN = 8
"""Samples that a log line names."""


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
        self.source = Path(required(settings.model_path, "mesh.model_path", "to know what to train"))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.shape = read_shape(self.source)
        self.bounds = Bounds(self.shape.vocabulary, self.shape.max_positions)
        self.layout = layout or initialize(settings.tensor_parallel, settings.pipeline_parallel, seed=settings.seed)
        self.dtype = _dtype(settings)
        self.progress = TrainingProgress()
        self._runner = ModelRunner(
            self.source,
            self.shape,
            self.layout,
            dtype=self.dtype,
            micro_batch_tokens=settings.micro_batch_tokens,
            temperature=settings.temperature,
        )
        self._optimizer = AdamW(self._runner.wrapped, settings, self.dtype)
        self._objective = Objective(settings)
        self._reference = self._runner.copy_weights() if Need.REFERENCE_LOGPROBS in self._objective.needs else None

    # ------------------------------------------------------------------------------------------------ training

    def train_step(self, groups: Sequence[ExperienceGroup]) -> Metrics:
        """Trains on one batch. ``progress`` counts the step and its tokens; the rest of it is the caller's.

        A batch in which no group teaches anything is a step too: it changes no weights.

        Args:
            groups: The batch, in the order of its manifest.

        Returns:
            See the module's docstring.

        Raises:
            TrainingError: The gradients are not finite.
            TrainingInterruptedError: :meth:`interrupt` was called.
        """
        began = time.perf_counter()
        batch = prepare(
            groups,
            version=self.progress.version,
            bounds=self.bounds,
            advantage=self._objective.advantage,
        )
        if batch.left_out and self.layout.rank == 0:
            shown = "; ".join(batch.left_out[:MAX_SHOWN])
            log.warning("step %d leaves out %d samples: %s", self.progress.step + 1, len(batch.left_out), shown)
        learning_rate = self._learning_rate()
        reports: list[Metrics] = []
        if batch.samples:
            samples = self._with_logprobs(batch.samples)
            rng = np.random.default_rng((self.settings.seed, self.progress.step))
            order = rng.permutation(len(samples))
            updates = self.settings.mini_batches
            if self.settings.loss_normalizer == "update":
                # Where groups are skipped there are fewer updates, not smaller ones: the mean over few samples is
                # mostly noise, and Adam makes full steps of it.
                updates = max(1, round(updates * len(samples) / batch.metrics["samples"]))
            parts = np.array_split(order, min(updates, len(samples)))
            # An equal part of the whole batch for each update, so that the less a batch teaches the smaller they are.
            share = None if self.settings.loss_normalizer == "update" else batch.response_tokens / len(parts)
            reports = [self._update([samples[i] for i in part], learning_rate, share) for part in parts]
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
        """Make a running step, or the next, stop between two micro-batches. May be called from any thread."""
        self._runner.interrupt()

    def leave(self) -> None:
        """Leaves the process groups, for good and for all engines of this process."""
        parallel.shut_down()

    # ------------------------------------------------------------------------------------------------- weights

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the weights under their Hugging Face names, in a fixed order. All ranks must iterate to the end."""
        return self._runner.hf_tensors()

    def export_hf(self, path: Path) -> None:
        """Write the model as a Hugging Face folder, replacing what is there only when the new one is whole."""
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
        """Make everything that a restart needs durable, in one rename; see ``checkpoint``.

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
                pipeline_parallel=self.layout.pipeline_parallel,
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
            pipeline_parallel=self.layout.pipeline_parallel,
            dtype=str(self.dtype),
        )
        # Each file by the rank that reads it; what all read, by the first.
        checkpoint.verify(
            folder,
            lambda name: name == self._state_file() or (self.layout.rank == 0 and not name.startswith(STATE)),
        )
        try:
            state = load_file(folder / self._state_file())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / self._state_file()} cannot be read: {error}") from error
        self._runner.load(folder)
        torch.set_rng_state(state.pop("rng.torch"))
        if not on_cpu():
            torch.cuda.set_rng_state(state.pop("rng.cuda"))
        self._optimizer.load_state({name.removeprefix("optimizer."): tensor for name, tensor in state.items()})
        self.progress = progress
        return progress

    # ------------------------------------------------------------------------------------------------ internals

    def _learning_rate(self) -> float:
        settings = self.settings
        if self.progress.step >= settings.warmup_steps:
            return settings.learning_rate
        return settings.learning_rate * (self.progress.step + 1) / settings.warmup_steps

    def _with_logprobs(self, samples: list[TrainSample]) -> list[TrainSample]:
        """Add the reference's and the old log-probabilities where the objective needs them."""
        if self._reference is not None:
            own = self._runner.copy_weights()
            self._runner.set_weights(self._reference)
            references = self._runner.logprobs(samples)
            self._runner.set_weights(own)
            samples = [s.with_ref_logprobs(r) for s, r in zip(samples, references, strict=True)]
        if Need.OLD_LOGPROBS in self._objective.needs:
            old = self._runner.logprobs(samples)
            samples = [s.with_old_logprobs(o) for s, o in zip(samples, old, strict=True)]
        return samples

    def _update(self, samples: list[TrainSample], learning_rate: float, normalizer: float | None) -> Metrics:
        """One update of the weights.

        Args:
            samples: What it is made of.
            learning_rate: Of this step.
            normalizer: Tokens that the sum over tokens is divided by; None: those of the samples.
        """
        runner = self._runner
        own_policy_is_old = self.settings.old_logprobs == "recompute" and self.settings.mini_batches == 1

        def loss(_: MicroBatchPlan, arrays: PackedArrays, logits: torch.Tensor) -> Any:
            logprobs, entropy = runner.token_logprobs(logits, arrays)
            tokens = Tokens(
                logprobs=logprobs,
                entropy=entropy,
                old_logprobs=logprobs.detach() if own_policy_is_old else runner.tensor(arrays.old_logprobs),
                rollout_logprobs=runner.tensor(arrays.rollout_logprobs),
                ref_logprobs=None if arrays.ref_logprobs is None else runner.tensor(arrays.ref_logprobs),
                advantages=runner.tensor(arrays.advantages),
                weight=runner.tensor(arrays.weight),
                bounds=runner.tensor(arrays.bounds),
            )
            value, metrics = self._objective.loss(tokens)
            # Three values: Megatron then neither scales the loss nor divides by the second, a token count.
            return value, torch.ones((), dtype=torch.int, device=value.device), metrics

        trained_tokens = sum(sample.trained_tokens for sample in samples)
        divisor = trained_tokens if normalizer is None else normalizer
        runner.wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()
        outputs = runner.run(samples, loss, token_weight=1.0 / divisor, forward_only=False)
        # On a stage that is not the last there are none, and the others' arrive below.
        sums = (
            torch.stack(outputs).sum(0)
            if outputs
            else torch.zeros(len(self._objective.metrics), device=self.layout.device)
        )
        for group in (self.layout.data_group, self.layout.pipeline_group):
            if group is not None:
                dist.all_reduce(sums, group=group)
        # What is reported are means over trained tokens, whatever the loss is divided by.
        means = (sums * (divisor / trained_tokens)).tolist()
        metrics: Metrics = dict(zip(self._objective.metrics, means, strict=True))
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(
                f"the loss of step {self.progress.step + 1} is {metrics['loss']}: the update was not made"
            )
        norm = self._optimizer.step(learning_rate)
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient norm of step {self.progress.step + 1} is {norm}: the weights in memory are void, the "
                "checkpoints are not; lower TRINITY_BUS_TRAINER__LEARNING_RATE, or look for broken logprobs"
            )
        return {**metrics, "grad_norm": norm, "micro_batches": float(len(outputs))}

    def _state_file(self) -> str:
        return f"{STATE}{self.layout.rank:05d}-of-{self.layout.world_size:05d}.safetensors"

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
        raise TrainingError("TRINITY_BUS_MESH__DTYPE=bfloat16 needs a GPU; on a CPU use float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]
