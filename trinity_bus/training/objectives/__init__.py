"""What is optimized: an advantage, a loss and a correction, each chosen by name. See docs/objectives.md.

This package, ``registry`` and what is of advantages import no torch.
"""

import enum


class Need(enum.Flag):
    """The first three are passes over the samples, before the first update of a step; others are in the samples."""

    NOTHING = 0
    # Log-probabilities under the weights at the start of the step
    OLD_LOGPROBS = enum.auto()
    # Log-probabilities under the model that training began with; a copy of it is kept in memory
    REFERENCE_LOGPROBS = enum.auto()
    # What a critic expects from each token on; it is a model of its own, trained beside the policy.
    VALUES = enum.auto()
    # What a teacher says of each token, from the workflow: ``Rollout.teacher_logprobs``
    TEACHER_LOGPROBS = enum.auto()
    # A chosen and a rejected answer to each prompt: preferences
    PAIRS = enum.auto()
