"""What the engines of one process share: the course of a step, and checkpoints.

An engine brings the model and its optimizer: log-probabilities, gradients, the update, the weights, the optimizer's
state by name. What is trained on, in which order and with which loss is decided here, so that two engines differ in
arithmetic alone.

Where there are several ranks each builds an engine and makes the same calls. It trains on its shard of every update.
"""

import logging
import math
import shutil
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.experience import ExperienceGroup, Float32
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings, required
from trinity_bus.training import adapters, checkpoint, hf_folder, layout_rules, routes, token_advantages
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.critic import Critic
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import CheckpointError, TrainingInterruptedError
from trinity_bus.training.families import read_shape
from trinity_bus.training.layout import Layout
from trinity_bus.training.objectives.advantages.advantage import TokenAdvantage
from trinity_bus.training.objectives.losses.loss import Tokens
from trinity_bus.training.objectives.needs import Need
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.packing import PackedArrays, TrainSample
from trinity_bus.training.samples import prepare
from trinity_bus.training.step_plan import StepPlan, Update, mixed, plan_examples, plan_step

log = logging.getLogger(__name__)

STATE = "optimizer-"
"""First part of the names of each rank's own files."""


class RankEngine(TrainingEngine):
    """One rank's part of a trainer.

    Args:
        settings: What to train and how. ``model_path`` must be set.
        layout: Where this process stands.

    Raises:
        ConfigError: ``model_path`` is not set.
        ConversionError: The model cannot be read.
        ParallelError: It cannot be trained in this layout.
        TrainingError: It cannot be trained in the type that the settings ask for.
    """

    NAME: ClassVar[str]
    """In ``trainer.engine`` and in checkpoints."""

    def __init__(self, settings: TrainerSettings, *, layout: Layout) -> None:
        self.settings, self.layout, self.dtype = settings, layout, self.dtype_of(settings)
        self._source = Path(required(settings.model_path, "mesh.model_path", "to know what to train"))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.shape = read_shape(self._source)
        layout_rules.check(settings, self.shape, self.NAME)
        self._skipped_in_a_row = 0
        """Updates, up to the last one, that were not made because their gradients were not finite."""
        self._progress = TrainingProgress()
        self._objective = Objective(settings)
        self._interrupted = threading.Event()
        self._build()
        self._critic = (
            Critic(self._source, settings, layout, before_each=self._stop_if_asked)
            if Need.VALUES in self._objective.needs
            else None
        )
        self._reference = self._copy_weights() if Need.REFERENCE_LOGPROBS in self._objective.needs else None

    # ------------------------------------------------------------------------------------------ what an engine brings

    @staticmethod
    @abstractmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        """Return the type of the weights.

        Raises:
            TrainingError: The engine does not train in the type that the settings ask for.
        """

    @abstractmethod
    def _build(self) -> None:
        """Make the model, with the weights of the source, and its optimizer."""

    @abstractmethod
    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]:
        """Return the log-probabilities of each sample's response tokens under the present weights."""

    @abstractmethod
    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return what is trained beside frozen weights, by PEFT's names, whole; nothing where there is no such."""

    @abstractmethod
    def _accumulate(self, samples: Sequence[TrainSample], token_weight: float) -> tuple[torch.Tensor, int]:
        """Compute gradients anew, and sum them over ranks.

        Args:
            samples: This rank's.
            token_weight: Weight of each of their trained tokens, times the sample's scale.

        Returns:
            The objective's metrics, summed over all ranks, and how many micro-batches this one has run.
        """

    @abstractmethod
    def _update_weights(self, learning_rate: float) -> float:
        """Clip the gradients and update the weights, unless the gradients are not finite.

        Returns:
            Their norm over all ranks before clipping.
        """

    @abstractmethod
    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return this rank's weights that are trained, in a fixed order."""

    @abstractmethod
    def _load_weights(self, folder: Path) -> None:
        """Fill the model from a Hugging Face folder."""

    @abstractmethod
    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return this rank's optimizer state by name, as references."""

    @abstractmethod
    def _load_optimizer_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over a state that :meth:`_optimizer_state` gave on the same rank of the same layout.

        Raises:
            CheckpointError: It is of another model or layout.
        """

    # ------------------------------------------------------------------------------------------------------- training

    @property
    def source(self) -> Path:
        """See :class:`TrainingEngine`."""
        return self._source

    @property
    def device_type(self) -> str:
        """See :class:`TrainingEngine`."""
        return str(self.layout.device.type)

    @property
    def progress(self) -> TrainingProgress:
        """See :class:`TrainingEngine`."""
        return self._progress

    @progress.setter
    def progress(self, progress: TrainingProgress) -> None:
        self._progress = progress

    def train_step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        seed: int | None = None,
        examples: Sequence[TrainSample] = (),
    ) -> Metrics:
        """See :class:`TrainingEngine`. All ranks are given the same groups."""
        began = time.perf_counter()
        step = self.plan(groups, seed, examples)
        metrics = self.train(step.shard(self.layout.data_rank, self.layout.data_parallel))
        return {**step.metrics, **metrics, "seconds": time.perf_counter() - began}

    def plan(
        self, groups: Sequence[ExperienceGroup], seed: int | None = None, examples: Sequence[TrainSample] = ()
    ) -> StepPlan:
        """Return what all ranks together are to train on in the next step; see :meth:`train_step`."""
        if self._objective.learns_from != "experiences":
            return plan_examples(examples, self.settings)
        settings = self.settings if seed is None else self.settings.model_copy(update={"seed": seed})
        batch = prepare(groups, version=self.progress.version, advantage=self._objective.advantage)
        samples, told = routes.prepared(batch.samples, self.shape, replay=settings.router_replay)
        batch = replace(batch, samples=samples, metrics={**batch.metrics, **told})
        return mixed(plan_step(batch, settings, step=self.progress.step), examples, settings)

    def train(self, step: StepPlan) -> Metrics:
        """Train on this rank's shard of a step, and count the step; see :meth:`train_step`."""
        learning_rate = self._learning_rate()
        updates, told = self._with_passes(step.updates)
        tried = [self._update(update, learning_rate) for update in updates]
        reports = [report for report in tried if report is not None]
        self.progress = self.progress.model_copy(
            update={
                "step": self.progress.step + 1,
                "version": self.progress.version + 1,
                "trained_tokens": self.progress.trained_tokens + step.trained_tokens,
            }
        )
        return {
            **told,
            **_means(reports),
            "learning_rate": learning_rate,
            "updates": float(len(reports)),
            "updates_skipped": float(len(tried) - len(reports)),
            "updates_skipped_in_a_row": float(self._skipped_in_a_row),
        }

    def interrupt(self) -> None:
        """See :class:`TrainingEngine`."""
        self._interrupted.set()

    def _stop_if_asked(self) -> None:
        """To be called before each micro-batch.

        Raises:
            TrainingInterruptedError: :meth:`interrupt` was called.
        """
        if self._interrupted.is_set():
            raise TrainingInterruptedError("a pass was abandoned on request")

    def _learning_rate(self) -> float:
        settings = self.settings
        if self.progress.step >= settings.warmup_steps:
            return settings.learning_rate
        return settings.learning_rate * (self.progress.step + 1) / settings.warmup_steps

    def _with_passes(self, updates: Sequence[Update]) -> tuple[list[Update], Metrics]:
        """Add what the objective needs: log-probabilities of others, values, and advantages from these."""
        samples = [sample for update in updates for sample in update.samples]
        if samples and self._reference is not None:
            own = self._copy_weights()
            self._set_weights(self._reference)
            references = self.logprobs(samples)
            self._set_weights(own)
            samples = [s.with_ref_logprobs(r) for s, r in zip(samples, references, strict=True)]
        if samples and Need.OLD_LOGPROBS in self._objective.needs:
            old = self.logprobs(samples)
            samples = [s.with_old_logprobs(o) for s, o in zip(samples, old, strict=True)]
        if samples and self._critic is not None:
            samples = [replace(s, values=v) for s, v in zip(samples, self._critic.values(samples), strict=True)]
        told: Metrics = {}
        if samples and isinstance(self._objective.advantage, TokenAdvantage):
            samples, told = token_advantages.finish(samples, self._objective.advantage, self._objective, self.layout)
        left = iter(samples)
        return [replace(update, samples=[next(left) for _ in update.samples]) for update in updates], told

    def _update(self, update: Update, learning_rate: float) -> Metrics | None:
        """Make one update of the weights; None, and nothing changes, where loss or gradients are not finite."""
        judged = {} if self._critic is None else self._critic.train(update)
        sums, micro_batches = self._accumulate(update.samples, 1.0 / update.divisor)
        # What is reported are means over what is trained on, whatever the loss is divided by.
        means = (sums * (update.divisor / update.weight)).tolist()
        metrics: Metrics = dict(zip(self._objective.metrics, means, strict=True))
        # All ranks have the same sums, so all skip or none does.
        norm = self._update_weights(learning_rate) if math.isfinite(metrics["loss"]) else math.nan
        if not math.isfinite(norm):
            self._skipped_in_a_row += 1
            if self.layout.rank == 0:
                log.warning(
                    "step %d: the gradient norm of an update is %g, its loss %g: the update is skipped",
                    *(self.progress.step + 1, norm, metrics["loss"]),
                )
            return None
        self._skipped_in_a_row = 0
        return {**metrics, **judged, "grad_norm": norm, "micro_batches": float(micro_batches)}

    def _loss(
        self, arrays: PackedArrays, logprobs: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a micro-batch and the objective's metrics, both weighted sums over its tokens."""
        own_policy_is_old = self.settings.old_logprobs == "recompute" and self.settings.mini_batches == 1
        own = logprobs.detach()
        old, rollout = self._tensor(arrays.old_logprobs), self._tensor(arrays.rollout_logprobs)
        drawn = None if arrays.drawn is None else self._tensor(arrays.drawn)
        if drawn is not None:
            # What nobody drew is taken to be from the policy itself.
            old, rollout = torch.where(drawn, old, own), torch.where(drawn, rollout, own)
        tokens = Tokens(
            logprobs=logprobs,
            entropy=entropy,
            old_logprobs=own if own_policy_is_old else old,
            rollout_logprobs=rollout,
            drawn=drawn,
            pairs=None if arrays.pairs is None else self._tensor(arrays.pairs),
            ref_logprobs=None if arrays.ref_logprobs is None else self._tensor(arrays.ref_logprobs),
            advantages=self._tensor(arrays.advantages),
            weight=self._tensor(arrays.weight),
            bounds=self._tensor(arrays.bounds),
        )
        return self._objective.loss(tokens)

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return an array on the device."""
        return torch.from_numpy(array).to(self.layout.device)

    def _copy_weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters()]

    def _set_weights(self, weights: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self._parameters(), weights, strict=True):
                parameter.copy_(weight)

    # ---------------------------------------------------------------------------------------- weights and checkpoints

    def export_hf(self, path: Path) -> None:
        """See :class:`TrainingEngine`."""
        tensors, adapter = self.hf_tensors(), self.adapter_tensors()
        if self.layout.rank == 0:
            partial = path.with_name(f".partial-{path.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            hf_folder.write_folder(partial, self.source, tensors, self.dtype)
            if self.settings.lora_rank:
                adapters.write_peft(partial / adapters.FOLDER, self.source, adapter, self.settings)
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
        deque((*tensors, *adapter), maxlen=0)  # the other ranks' part in gathering the weights
        self._barrier()

    def save_checkpoint(self, directory: Path, progress: TrainingProgress) -> Path:
        """See :class:`TrainingEngine`."""
        if progress.step != self.progress.step:
            raise CheckpointError(f"progress says step {progress.step}, the engine is at step {self.progress.step}")
        self.progress = progress
        rank = self.layout.rank
        if rank == 0:
            checkpoint.begin(directory, progress.step)
        self._barrier()
        folder = checkpoint.partial_folder(directory, progress.step)
        state = {f"optimizer.{name}": tensor for name, tensor in self._optimizer_state().items()}
        if self._critic is not None:
            state |= {f"critic.{name}": tensor for name, tensor in self._critic.state().items()}
        state["rng.torch"] = torch.get_rng_state()
        if self.device_type == "cuda":
            state["rng.cuda"] = torch.cuda.get_rng_state()
        save_file({name: tensor.cpu().contiguous() for name, tensor in state.items()}, folder / self._state_file())
        tensors = self.hf_tensors()
        if rank == 0:
            hf_folder.write_folder(folder, self.source, tensors, self.dtype)
        deque(tensors, maxlen=0)  # the other ranks' part in gathering the weights
        self._barrier()
        if rank == 0:
            checkpoint.commit(directory, progress, self.written_by(self.settings), keep=self.settings.keep_checkpoints)
        self._barrier()
        return directory / folder.name.removeprefix(checkpoint.PARTIAL)

    def load_latest(self, directory: Path) -> TrainingProgress | None:
        """See :class:`TrainingEngine`."""
        folder = checkpoint.latest(directory)
        if folder is None:
            return None
        progress = checkpoint.read_progress(folder, self.written_by(self.settings))
        # Each file by the rank that reads it; what all read, by the first.
        checkpoint.verify(
            folder,
            lambda name: name == self._state_file() or (self.layout.rank == 0 and not name.startswith(STATE)),
        )
        try:
            state = load_file(folder / self._state_file())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / self._state_file()} cannot be read: {error}") from error
        if not self.settings.lora_rank:
            # Else the folder has what the adapters add in it; they are added to what training began with.
            self._load_weights(folder)
        torch.set_rng_state(state.pop("rng.torch"))
        if self.device_type == "cuda":
            torch.cuda.set_rng_state(state.pop("rng.cuda"))
        self._load_optimizer_state(_below("optimizer.", state))
        if self._critic is not None:
            self._critic.load_state(_below("critic.", state))
        self.progress = progress
        return progress

    @classmethod
    def written_by(cls, settings: TrainerSettings) -> WrittenBy:
        """Return what checkpoints say of the engine that writes them with these settings.

        Raises:
            TrainingError: See :meth:`dtype_of`.
        """
        return WrittenBy(
            engine=cls.NAME,
            world_size=settings.ranks,
            tensor_parallel=settings.tensor_parallel,
            pipeline_parallel=settings.pipeline_parallel,
            virtual_pipeline=settings.virtual_pipeline,
            context_parallel=settings.context_parallel,
            expert_parallel=settings.expert_parallel,
            distributed_optimizer=settings.distributed_optimizer,
            dtype=str(cls.dtype_of(settings)),
        )

    def _state_file(self) -> str:
        return f"{STATE}{self.layout.rank:05d}-of-{self.layout.world_size:05d}.safetensors"

    def _barrier(self) -> None:
        if self.layout.world_size > 1:
            dist.barrier()


def _below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what of a state has names with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _means(reports: Sequence[Metrics]) -> Metrics:
    if not reports:
        return {}
    means = {name: math.fsum(report[name] for report in reports) / len(reports) for name in reports[0]}
    return {**means, "mismatch_k3": reports[0]["rollout_k3"]}
