"""What is optimized: an advantage, a loss and a correction, each chosen by name.

docs/objectives.md has all of them with formula, source and needs, and how an installed package adds its own.

``objective`` puts the three together with the KL penalty and the entropy bonus; ``registry`` finds them by name, those
of installed packages too. This package, ``registry`` and what is of advantages import no torch.
"""

import enum


class Need(enum.Flag):
    """What a part may ask for, beside the samples themselves: of the engine, or of who made the samples.

    The first three are passes over the samples, made before the first update of a step where something needs them. The
    others are in the samples, or not: what needs them is refused where they cannot be there, before anything loads.
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
