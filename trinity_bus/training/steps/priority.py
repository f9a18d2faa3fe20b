"""Which groups of earlier steps a step learns from once more, with ``trainer.strategy=priority``. Pure.

::

    priority of a group = the step in which it was new - trainer.replay_decay * how often it was trained on since

The ``trainer.replay_groups`` of the highest are taken, of those that were new in the last ``trainer.replay_steps``
steps and that teach something. Equal ones are drawn by ``(seed, step)``. All of that stands on the log: on ``steps``
what earlier steps were made of, on ``experiences`` what the groups are. So a restart repeats the choice.

The order is that of Trinity-RFT's ``linear_decay``; why groups that teach nothing are no use, DAPO's dynamic sampling
tells (Yu et al., arXiv:2503.14476, section 3.2).
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from schemas import StepBegun, StepGroup
from trinity_bus.config import TrainerSettings

# Keeps these draws apart from those that shuffle the samples of the same seed and step
_OWN_DRAWS = 1


def ranked(begun: Iterable[StepBegun], settings: TrainerSettings, *, step: int) -> list[StepGroup]:
    """Return the groups that may be learned from once more, those of the highest priority first.

    ``begun`` has what earlier steps were made of, each once, the oldest first.
    """
    earlier = [record for record in begun if step - settings.replay_steps <= record.step < step]
    uses = Counter(group.task_id for record in earlier for group in record.replayed)
    new = [(record.step - settings.replay_decay * uses[group.task_id], group) for record in earlier
           for group in record.groups]  # fmt: skip
    lots = np.random.default_rng((settings.seed, step, _OWN_DRAWS)).permutation(len(new)).tolist()
    order = sorted(range(len(new)), key=lambda i: (-new[i][0], lots[i]))
    return [new[i][1] for i in order]
