"""On-policy distillation: how much likelier a teacher finds each token than the policy that drew it.

::

    A_t = log p_teacher(y_t) - log p_rollout(y_t)

That is the sampled reverse KL with its sign turned: on policy the gradient of REINFORCE with it is that of
``-KL(policy || teacher)`` of each next token, given what was drawn before it. What a token does to those after it is
left out: Gu et al., "MiniLLM", arXiv:2306.08543, section 2.2, the single-step part; Agarwal et al., "On-Policy
Distillation of Language Models", arXiv:2306.13649, where nothing is propagated through the drawing either.

Rewards play no part, and neither do the other samples of the task. A teacher's log-probabilities are those of
``Rollout.teacher_logprobs``; a sample of which it was not asked is not trained on.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from schemas.experience import Float32
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives.advantages.advantage import Advantage, GroupAdvantages, ScoredSample
from trinity_bus.training.objectives.needs import Need


class Distillation(Advantage):
    needs: ClassVar[Need] = Need.TEACHER_LOGPROBS

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """TrainingError where no sample has a teacher's log-probabilities, so that nothing could ever be learned."""
        if any(groups) and all(sample.teacher_logprobs is None for group in groups for sample in group):
            raise TrainingError(
                "trainer.advantage='distillation' needs what a teacher says of each token, and no sample of this batch "
                "has that: have the workflow set Rollout.teacher_logprobs"
            )
        return [_of_group(group) for group in groups]


def _of_group(samples: Sequence[ScoredSample]) -> GroupAdvantages:
    advantages = [_of(sample) for sample in samples]
    return None if all(np.isnan(values).any() for values in advantages) else advantages


def _of(sample: ScoredSample) -> Float32:
    if sample.teacher_logprobs is None:
        return np.full(len(sample.mask), np.nan, np.float32)
    return np.where(sample.mask, sample.teacher_logprobs - sample.logprobs, np.float32(0))
