"""Whether something grows: a line through what was measured, without the first part, in which caches fill. Pure."""

import statistics
from collections.abc import Sequence
from typing import Final

WARM_UP: Final = 1 / 3
"""Of the points, the first ones: until all that is bounded is full."""

MIN_POINTS: Final = 4
"""So that there is a line after the warm-up."""

LEAST: Final = 2.0
LEAST_SHARE: Final = 0.02
"""Growth that is none: so many, or so much of the most that there was."""

type Points = Sequence[tuple[float, float]]


def growth(points: Points) -> float:
    """Return by how much something grows from the end of the warm-up to the end.

    It is the median of the slopes between each two points (Theil and Sen), times the span: one point amid a collection
    of garbage, or beside it, moves it little.

    Raises:
        ValueError: There are too few points to tell.
    """
    kept = _after_warm_up(points)
    slopes = sorted((b - a) / (t - s) for i, (s, a) in enumerate(kept) for t, b in kept[i + 1 :] if t > s)
    if not slopes:
        raise ValueError(f"{len(points)} points are too few")
    middle = len(slopes) // 2
    slope = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    return slope * (kept[-1][0] - kept[0][0])


def grows(points: Points) -> bool:
    """Whether something that goes up and down all the time grows: by more than it swings.

    The swing is that of its middle half, which is half of the growth of what rises steadily.

    Raises:
        ValueError: There are too few points to tell.
    """
    risen = growth(points)
    values = [value for _, value in _after_warm_up(points)]
    lower, _, upper = statistics.quantiles(values, n=4)
    return risen > max(LEAST, LEAST_SHARE * max(values), upper - lower)


def _after_warm_up(points: Points) -> Points:
    return points[int(len(points) * WARM_UP) :]
