"""Whether something grows: a line through what was measured, without the first part, in which caches fill. Pure."""

from collections.abc import Sequence
from typing import Final

WARM_UP: Final = 1 / 3
"""Of the points, the first ones: until all that is bounded is full."""

MIN_POINTS: Final = 4
"""So that there is a line after the warm-up."""

type Points = Sequence[tuple[float, float]]
"""Seconds and values."""


def growth(points: Points) -> float:
    """Return by how much something grows from the end of the warm-up to the end.

    It is the median of the slopes between each two points (Theil and Sen), times the span: one point amid a collection
    of garbage, or beside it, moves it little.

    Raises:
        ValueError: There are too few points to tell.
    """
    kept = points[int(len(points) * WARM_UP) :]
    slopes = sorted((b - a) / (t - s) for i, (s, a) in enumerate(kept) for t, b in kept[i + 1 :] if t > s)
    if not slopes:
        raise ValueError(f"{len(points)} points are too few")
    middle = len(slopes) // 2
    slope = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    return slope * (kept[-1][0] - kept[0][0])
