"""The contract of training engines: experiences in, better weights out.

``trainer.engine`` chooses which: ``rank_engine.RankEngine`` is what all of one process share, ``multi_rank_engine`` has
other ranks behind it. A service opens one by its constructor, which takes seconds, goes back to the newest
checkpoint with :meth:`TrainingEngine.load_latest`, and ends with :meth:`TrainingEngine.leave`.

A step trains on one batch::

    groups --> samples with advantages --> shuffled --> updates --> a shard of each for this rank --> micro-batches
              (samples)                   (seed, step)  (step_plan)

Everything that happens in a step follows from the weights, the optimizer's state, the groups and ``(seed, step)``. On a
CPU, with the same number of threads, a step that is repeated from a checkpoint gives the same weights bit for bit.

A step that raises leaves the weights in an undefined state: make a new engine and load the last checkpoint. An update
whose loss or gradients are not finite is skipped: nothing changes, and the step goes on with the next.

docs/objectives.md says what the metrics of a step are. This module imports no torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.experience import ExperienceGroup
from schemas.record import Metrics
from trinity_bus.training.checkpoint import TrainingProgress

if TYPE_CHECKING:
    import torch

    from trinity_bus.training.steps.packing import TrainSample
    from trinity_bus.training.steps.token_figures import SampleFigures


class TrainingEngine(ABC):
    """Not safe for use by two threads at once, but for :meth:`interrupt`."""

    # Folder that the model came from
    source: Path
    # Where the weights are, in torch's words
    device_type: str
    dtype: "torch.dtype"
    # How far training has come. The engine counts steps, version and tokens; the rest is the caller's to set.
    progress: TrainingProgress

    @abstractmethod
    def train_step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        seed: int | None = None,
        examples: "Sequence[TrainSample]" = (),
    ) -> Metrics:
        """Train on one batch, and count it in :attr:`progress`.

        A batch in which no group teaches anything is a step too: it changes no weights.

        Args:
            groups: The batch, in the order of its manifest; none where the loss learns from examples.
            seed: Of the shuffling, where it is not that of the settings: a step that is taken again has its own.
            examples: What the loss learns from, in the order wanted; else demonstrations that are mixed with the batch.
        """

    @abstractmethod
    def take_figures(self) -> "list[SampleFigures]":
        """Return what the last step has kept of single tokens (``token_figures``), once. Empty after an error."""

    @abstractmethod
    def interrupt(self) -> None:
        """Stop a running step, or the next, between two micro-batches by TrainingInterruptedError. From any thread."""

    @abstractmethod
    def leave(self) -> None:
        """Finish the checkpoint that is being written, and let go of what the engine shares with others."""

    @abstractmethod
    def hf_tensors(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return the weights under their Hugging Face names, in a fixed order; to be iterated to the end."""

    @abstractmethod
    def adapter_tensors(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Return what is trained beside frozen weights, by PEFT's names, as :meth:`hf_tensors` does; or nothing."""

    @abstractmethod
    def save_checkpoint(self, directory: Path, progress: TrainingProgress, *, as_hf: bool = True) -> "Future[Path]":
        """Copy everything that a restart needs, and make it durable in one rename, beside whatever is called next.

        A checkpoint that is still being written is waited for first. See ``saving`` and ``checkpoint``.

        Args:
            progress: Steps, version and tokens are the engine's own count; the caller adds where it reads on.
            as_hf: Whether configuration and tokenizer are put beside the weights, so that it is a model folder.
        """

    @abstractmethod
    def load_latest(self, directory: Path, *, through: int | None = None) -> TrainingProgress | None:
        """Go back to the newest checkpoint, up to step ``through``, of whatever layout; None where there is none.

        CheckpointError where it is damaged or does not fit. The directory may be another trainer's.
        """
