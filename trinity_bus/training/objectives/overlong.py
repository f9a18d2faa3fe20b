"""DAPO's soft overlong punishment: what a response loses of its reward as it comes near to the longest that is allowed.

With ``n`` tokens of the model's own, ``m = mesh.max_tokens`` and ``b = trainer.overlong_buffer``::

    penalty = clip((n - (m - b)) / b, 0, 1) * trainer.overlong_penalty

Source: Yu et al., "DAPO", arXiv:2503.14476, eq. 13, where the highest penalty is 1. Pure.
"""

from trinity_bus.config import TrainerSettings


def penalty(tokens: int, settings: TrainerSettings) -> float:
    if settings.overlong_buffer is None:
        return 0.0
    beyond = tokens - (settings.max_tokens - settings.overlong_buffer)
    return min(max(beyond / settings.overlong_buffer, 0.0), 1.0) * settings.overlong_penalty
