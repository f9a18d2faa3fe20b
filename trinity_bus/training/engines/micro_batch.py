"""How many tokens go through the model at once: what ``trainer.micro_batch_tokens=auto`` comes to, and less of it.

::

    settings --fitted: what is free, by the formula of ``sizing.memory``--> a number of tokens, recompute where it must
    a pass --the GPU is out of memory--> half as many, and the pass anew --a sample alone does not fit--> TrainingError

A pass that is made anew begins with gradients of nothing, so the step is as it would have been. Ranks that each train
on samples of their own wait for the one that begins anew, and keep their own number. Where ranks hold parts of one
model they meet within a pass: there one that is out of memory ends the trainer.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.device import uses_gpu
from trinity_bus.runtime.memory import free_bytes
from trinity_bus.sizing.memory import GIB, KEPT_BACK, micro_batch, trainer_need
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.families import ModelShape
from trinity_bus.training.steps.packing import TrainSample

log = logging.getLogger(__name__)

_AGAIN: Final = ", activations are computed again"


@dataclass(slots=True)
class MicroBatchBudget:
    """Tokens of a micro-batch, at most, unless a sample alone has more."""

    tokens: int
    # Whether this rank may take fewer than others do
    may_halve: bool = True
    # How often, since the start
    halved: int = 0

    def within_memory[R](self, samples: Sequence[TrainSample], run: Callable[[], R]) -> R:
        """Run a pass over samples; anew, with half as many tokens at once, where a GPU has too little memory.

        Raises:
            TrainingError: Its longest sample does not fit alone.
            torch.OutOfMemoryError: It may not take fewer.
        """
        while True:
            try:
                return run()
            except torch.OutOfMemoryError as error:
                if not self.may_halve:
                    raise
                longest = max(len(sample.tokens) for sample in samples)
                if self.tokens < longest:
                    raise TrainingError(
                        f"a sample of {longest:,} tokens does not fit into the GPU's memory: set trainer.recompute, a "
                        "smaller mesh.max_model_len, or more trainer.tensor_parallel or context_parallel"
                    ) from error
                # Nothing of the pass is kept: what it has made goes with the traceback, when this block is left.
                said = str(error).partition(".")[0]
            self.tokens, self.halved = self.tokens // 2, self.halved + 1
            log.warning("%s: the pass is made again, with micro-batches of %d tokens", said, self.tokens)
            torch.cuda.empty_cache()


def fitted(settings: TrainerSettings, shape: ModelShape, longest: int = 1) -> TrainerSettings:
    """Return settings with a number of tokens in place of ``auto``, for what is free now.

    ConfigError where a sample of ``longest`` tokens does not fit, or so many tokens as the settings ask for.
    """
    if uses_gpu():
        free, total = torch.cuda.mem_get_info()
        free -= round(KEPT_BACK * total)
    else:
        found = free_bytes()
        # All ranks are on this machine, which says nothing of what is free where it has no such file.
        free, total = (1 << 62 if found is None else found // settings.ranks), None
    asked = settings.micro_batch_tokens
    need = trainer_need(shape, settings, total, longest)
    if asked != "auto" and need.total <= free:
        return settings
    auto = settings.model_copy(update={"micro_batch_tokens": "auto"})
    least = trainer_need(shape, auto, total, longest, free)
    chosen = micro_batch(shape, auto, total, longest, free - sum(item.size for item in least.fixed))
    if chosen is None:
        raise ConfigError(
            f"training needs {least.total / GIB:.1f} GiB for samples of up to {longest:,} tokens, even with recompute, "
            f"and {free / GIB:.1f} are free: set mesh.max_model_len lower, train adapters (trainer.lora_rank), or give "
            "it more memory"
        )
    if asked != "auto":
        raise ConfigError(
            f"trainer.micro_batch_tokens is {asked:,}, for which training needs {need.total / GIB:.1f} GiB, and "
            f"{free / GIB:.1f} are free: set it to auto, for {chosen[0]:,} tokens{_AGAIN * chosen[1]}"
        )
    tokens, recompute = chosen
    log.info("micro-batches of %d tokens%s", tokens, _AGAIN * recompute)
    return settings.model_copy(update={"micro_batch_tokens": tokens, "recompute": recompute})
