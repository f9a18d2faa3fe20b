"""What a part of an objective may ask the engine for, beside the samples themselves."""

import enum


class Need(enum.Flag):
    """Passes over the samples, made before the first update of a step and only where something needs them."""

    NOTHING = 0
    OLD_LOGPROBS = enum.auto()
    """Log-probabilities under the weights at the start of the step."""
    REFERENCE_LOGPROBS = enum.auto()
    """Log-probabilities under the model that training began with; a copy of it is kept in memory."""
    VALUES = enum.auto()
    """What a critic expects from each token on; it is a model of its own, trained beside the policy."""
