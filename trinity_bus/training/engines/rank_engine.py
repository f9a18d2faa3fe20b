"""What the engines of one process share: the course of a step.

An engine brings the model and its optimizer. What is trained on, in which order and with which loss, and what is kept
of it, is decided here, so that two engines differ in arithmetic alone. Where there are several ranks each builds an
engine and makes the same calls. It trains on its shard of every update.

In a checkpoint all tensors are whole and have names of Hugging Face or, where adapters are trained, of PEFT, so it can
be read in any layout. Its weights have in them what adapters add. They are not read back then: the adapters are, and
are added anew to the weights of the source.
"""

import logging
import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from msgspec import structs

from schemas.experience import ExperienceGroup, Float32
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings, required
from trinity_bus.runtime.memory import give_back_memory
from trinity_bus.training import checkpoint, layout_rules
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint.folders import ADAPTER
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.engines.critic import Critic, finish_advantages
from trinity_bus.training.engines.micro_batch import MicroBatchBudget, fitted
from trinity_bus.training.engines.saving import BackgroundSaver, SavedState, Snapshot, copies, ensure_loadable
from trinity_bus.training.errors import CheckpointError, TrainingInterruptedError
from trinity_bus.training.families import read_shape
from trinity_bus.training.layout import Layout
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.advantages import TokenAdvantage
from trinity_bus.training.objectives.losses import Tokens
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.steps import token_figures
from trinity_bus.training.steps.packing import PackedArrays, TrainSample
from trinity_bus.training.steps.samples import prepare, with_routes
from trinity_bus.training.steps.step_plan import StepPlan, Update, mixed, plan_examples, plan_step
from trinity_bus.training.steps.token_figures import FigureKeeper, SampleFigures

log = logging.getLogger(__name__)


class RankEngine(TrainingEngine):
    # In ``trainer.engine`` and in checkpoints
    NAME: ClassVar[str]
    # Whether a prompt of several samples is computed once
    shares_prompts = False

    def __init__(self, settings: TrainerSettings, *, layout: Layout) -> None:
        self.layout, self.dtype = layout, self.dtype_of(settings)
        self.source = Path(required(settings.model_path, "mesh.model_path", "to know what to train"))
        self.device_type = str(layout.device.type)
        self.progress = TrainingProgress()
        self._saver = BackgroundSaver()
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        # What this process was forked from may have drawn numbers.
        torch.manual_seed(settings.seed)
        self.shape = read_shape(self.source)
        layout_rules.check(settings, self.shape, self.NAME)
        if settings.micro_batch_tokens == "auto":
            settings = fitted(settings, self.shape)
        self.settings = settings
        assert settings.micro_batch_tokens != "auto"  # noqa: S101 - what that is for
        self._budget = MicroBatchBudget(settings.micro_batch_tokens, may_halve=layout.passes_alone)
        # Updates, up to the last one, that were not made because their gradients were not finite
        self._skipped_in_a_row = 0
        self._objective = Objective(settings)
        self._interrupted = threading.Event()
        self._figures = FigureKeeper(is_keeping=layout.tensor_rank == layout.context_rank == 0)
        self._build()
        self._critic: Critic | None = (
            Critic(self.source, settings, layout, budget=self._budget, before_each=self._stop_if_asked)
            if Need.VALUES in self._objective.needs
            else None
        )
        self._reference = (
            [parameter.detach().clone() for parameter in self._parameters()]
            if Need.REFERENCE_LOGPROBS in self._objective.needs
            else None
        )

    # ------------------------------------------------------------------------------------------ what an engine brings

    @staticmethod
    @abstractmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        """TrainingError where the engine does not train in the type asked for."""

    @abstractmethod
    def _load_weights(self, folder: Path) -> None: ...

    @abstractmethod
    def _load_adapters(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Take over what :meth:`adapter_tensors` gave in any layout; CheckpointError where it is of another model."""

    @abstractmethod
    def _optimizer_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the optimizer's state by name, whole, in a fixed order. All ranks must iterate to the end."""

    @abstractmethod
    def _load_optimizer_state(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Take over a state of any layout; CheckpointError where it is of another model."""

    @abstractmethod
    def _build(self) -> None:
        """Make the model, with the weights of the source, and its optimizer."""

    @abstractmethod
    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]: ...

    @abstractmethod
    def _accumulate(self, samples: Sequence[TrainSample], token_weight: float) -> tuple[torch.Tensor, int]:
        """Compute gradients anew, and sum them over ranks; ``token_weight`` is that of a sample whose scale is 1.

        Returned are the objective's metrics, summed over all ranks, and how many micro-batches this one has run.
        """

    @abstractmethod
    def _update_weights(self, learning_rate: float) -> float:
        """Clip the gradients and update the weights, unless they are not finite; return their norm before clipping."""

    @abstractmethod
    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return this rank's weights that are trained, in a fixed order."""

    # ------------------------------------------------------------------------------------------------------- training

    def train_step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        seed: int | None = None,
        examples: Sequence[TrainSample] = (),
    ) -> Metrics:
        began = time.perf_counter()
        step = self.plan(groups, seed, examples)
        metrics = self.train(step.shard(self.layout.data_rank, self.layout.data_parallel, share=self.shares_prompts))
        return {**step.metrics, **metrics, "seconds": time.perf_counter() - began}

    def plan(
        self, groups: Sequence[ExperienceGroup], seed: int | None = None, examples: Sequence[TrainSample] = ()
    ) -> StepPlan:
        if self._objective.learns_from != "experiences":
            return plan_examples(examples, self.settings)
        settings = self.settings if seed is None else self.settings.model_copy(update={"seed": seed})
        batch = prepare(groups, version=self.progress.version, advantage=self._objective.advantage)
        samples, told = with_routes(batch.samples, self.shape, replay=settings.router_replay)
        samples = token_figures.marked(samples, batch.sizes, settings, self.progress.step)
        batch = replace(batch, samples=samples, metrics={**batch.metrics, **told})
        return mixed(plan_step(batch, settings, step=self.progress.step), examples, settings)

    def train(self, step: StepPlan) -> Metrics:
        learning_rate = self._learning_rate()
        self._figures.begin()
        updates, told = self._with_passes(step.updates)
        tried = [self._update(update, learning_rate) for update in updates]
        reports = [report for report in tried if report is not None]
        if self.device_type == "cpu":
            give_back_memory()
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
            "micro_batches_halved": self._halved(),
        }

    def take_figures(self) -> list[SampleFigures]:
        return self._figures.take()

    def interrupt(self) -> None:
        self._interrupted.set()

    def _stop_if_asked(self) -> None:
        if self._interrupted.is_set():
            raise TrainingInterruptedError("a pass was abandoned on request")

    def _halved(self) -> float:
        # On all ranks together; a collective
        halved = torch.tensor(float(self._budget.halved), device=self.layout.device)
        if (group := self.layout.data_group) is not None:
            dist.all_reduce(halved, group=group)
        return float(halved)

    def _learning_rate(self) -> float:
        settings, step = self.settings, self.progress.step
        warm = 1.0 if step >= settings.warmup_steps else (step + 1) / settings.warmup_steps
        left = 1.0 if settings.decay_steps is None else max(0.0, 1 - step / settings.decay_steps)
        return settings.learning_rate * warm * left

    def _with_passes(self, updates: Sequence[Update]) -> tuple[list[Update], Metrics]:
        # What the objective needs: log-probabilities of others, values, and advantages from these
        samples = [sample for update in updates for sample in update.samples]
        if samples and self._reference is not None:
            self._saver.taken()
            self._exchange_weights(self._reference)
            references = self._budget.within_memory(samples, lambda: self.logprobs(samples))
            self._exchange_weights(self._reference)
            samples = [structs.replace(s, ref_logprobs=r) for s, r in zip(samples, references, strict=True)]
        if samples and Need.OLD_LOGPROBS in self._objective.needs:
            old = self._budget.within_memory(samples, lambda: self.logprobs(samples))
            samples = [structs.replace(s, old_logprobs=o) for s, o in zip(samples, old, strict=True)]
        if samples and self._critic is not None:
            samples = [structs.replace(s, values=v) for s, v in zip(samples, self._critic.values(samples), strict=True)]
        told: Metrics = {}
        if samples and isinstance(self._objective.advantage, TokenAdvantage):
            samples, told = finish_advantages(samples, self._objective.advantage, self._objective, self.layout)
        left = iter(samples)
        return [replace(update, samples=[next(left) for _ in update.samples]) for update in updates], told

    def _update(self, update: Update, learning_rate: float) -> Metrics | None:
        # None, and nothing changes, where loss or gradients are not finite. While the critic warms up it is the only
        # one that learns, and all that is told.
        if self._critic is not None:
            self._saver.taken()
        judged = {} if self._critic is None else self._critic.train(update)
        if judged and self.progress.step < self.settings.critic_warmup_steps:
            return judged
        sums, micro_batches = self._budget.within_memory(
            update.samples, lambda: self._accumulate(update.samples, 1.0 / update.divisor)
        )
        # What is reported are means over what is trained on, whatever the loss is divided by.
        means = (sums * (update.divisor / update.weight)).tolist()
        metrics: Metrics = dict(zip(self._objective.metrics, means, strict=True))
        self._saver.taken()
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
        self._figures.updates += 1
        return {**metrics, **judged, "grad_norm": norm, "micro_batches": float(micro_batches)}

    def _loss(
        self, samples: Iterable[TrainSample], arrays: PackedArrays, logprobs: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Both weighted sums over the tokens of the micro-batch; its samples' figures are kept where they are wanted.
        own_policy_is_old = self.settings.old_logprobs == "recompute" and self.settings.mini_batches == 1
        own = logprobs.detach()
        old, rollout = self._tensor(arrays.old_logprobs), self._tensor(arrays.rollout_logprobs)
        self._figures.keep(samples, arrays, own - rollout, entropy.detach())
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
        return torch.from_numpy(array).to(self.layout.device)

    def _exchange_weights(self, others: list[torch.Tensor]) -> None:
        # The list has the present ones then; nothing is copied
        for place, parameter in enumerate(self._parameters()):
            parameter.data, others[place] = others[place], parameter.data

    # ------------------------------------------------------------------------------------------- writing and reading

    def save_checkpoint(self, directory: Path, progress: TrainingProgress, *, as_hf: bool = True) -> "Future[Path]":
        # All ranks give what they have, and rank 0 alone writes.
        if progress.step != self.progress.step:
            raise CheckpointError(f"progress says step {progress.step}, the engine is at step {self.progress.step}")
        self.progress = progress
        self._saver.wait()
        if self.layout.rank > 0:
            # This rank's part in gathering, in the order in which rank 0 asks.
            for gathered in (self._optimizer_state(), self.adapter_tensors(), self.hf_tensors()):
                deque(gathered, maxlen=0)
            written: Future[Path] = Future()
            written.set_result(checkpoint.folder_of(directory, progress.step))
            return written
        rng = {"torch": torch.get_rng_state()}
        if self.device_type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()

        def state() -> Iterator[tuple[str, torch.Tensor]]:
            critic = {} if self._critic is None else self._critic.state()
            parts: dict[str, Iterable[tuple[str, torch.Tensor]]] = {
                "optimizer.": self._optimizer_state(),
                ADAPTER: self.adapter_tensors(),
                "critic.": critic.items(),
                "rng.": rng.items(),
            }
            return ((prefix + name, tensor) for prefix, part in parts.items() for name, tensor in part)

        # What several ranks hold is gathered by all of them, here; what this one has stays as it is until it is taken.
        is_alone = self.layout.world_size == 1
        snapshot = Snapshot(
            progress=progress,
            written_by=self.written_by(self.settings),
            state=state if is_alone else copies(state()),
            weights=self.hf_tensors if is_alone else copies(self.hf_tensors()),
            source=self.source,
            dtype=self.dtype,
            as_hf=as_hf,
            keep=self.settings.keep_checkpoints,
        )
        return self._saver.save(snapshot, directory)

    def load_latest(self, directory: Path, *, through: int | None = None) -> TrainingProgress | None:
        self._saver.wait()
        folder = checkpoint.latest(directory, through)
        if folder is None:
            return None
        with checkpoint.held(folder):
            return self._load(folder)

    def _load(self, folder: Path) -> TrainingProgress:
        progress = checkpoint.read_progress(folder, self.written_by(self.settings))
        if self.layout.rank == 0:
            checkpoint.verify(folder)
        ensure_loadable(folder, self.settings, critic=self._critic is not None)
        optimizer, adapter, rng = (SavedState(folder, f"{part}.") for part in ("optimizer", "adapter", "rng"))
        if adapter:
            self._load_adapters(adapter, folder)
        else:
            self._load_weights(folder)
        self._load_optimizer_state(optimizer, folder)
        torch.set_rng_state(rng["torch"])
        if self.device_type == "cuda" and "cuda" in rng:  # It is not where a CPU has trained before.
            torch.cuda.set_rng_state(rng["cuda"])
        if self._critic is not None:
            self._critic.load_state(SavedState(folder, "critic."))
        self.progress = progress
        return progress

    def leave(self) -> None:
        # A checkpoint that is being written is finished.
        self._saver.close()

    @classmethod
    def written_by(cls, settings: TrainerSettings) -> WrittenBy:
        return WrittenBy(engine=cls.NAME, dtype=str(cls.dtype_of(settings)))


def _means(reports: Sequence[Metrics]) -> Metrics:
    if not reports:
        return {}
    means = {name: math.fsum(report[name] for report in reports) / len(reports) for name in reports[0]}
    return {**means, "mismatch_k3": reports[0]["rollout_k3"]} if "rollout_k3" in means else means
