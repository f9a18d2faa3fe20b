"""What a part of an objective may ask for, beside the samples themselves: of the engine, or of who made the samples."""

import enum


class Need(enum.Flag):
    """The first three are passes over the samples, made before the first update of a step where something needs them.

    The others are in the samples, or not: what needs them is refused where they cannot be there, before anything loads.
    """

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
