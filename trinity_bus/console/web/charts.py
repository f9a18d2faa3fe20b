"""What the charts of ``charts.html`` are made of: as many points as can be seen, axes, and numbers for people. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

MAX_POINTS: Final = 160  # Of one line; neighbours are averaged where there are more

type Point = tuple[float, float]


class Line(NamedTuple):
    name: str
    points: list[Point]


class Chart(NamedTuple):
    """Lines on one axis. Without a point it says that there is nothing yet."""

    title: str
    lines: list[Line]
    x_name: str


def chart(title: str, lines: Iterable[tuple[str, Sequence[Point]]], x_name: str = "step") -> Chart:
    """Return a chart of lines by their names; points ascend by x, and what is no finite number is passed over."""
    return Chart(title, [Line(name, thinned(points)) for name, points in lines], x_name)


def thinned(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return no more points than are drawn: the means of neighbours.

    >>> thinned([(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)], most=2)
    [(1.5, 0.5), (3.5, 2.5)]
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= most:
        return finite
    bounds = [round(i * len(finite) / most) for i in range(most + 1)]
    parts = [finite[begin:end] for begin, end in pairwise(bounds)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers, and where in the picture its two ends are."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(self.first + (value - self.low) / span * (self.last - self.first), 1)

    def ticks(self, most: int) -> list[float]:
        """Return round numbers of the range.

        >>> Axis(0, 1, 0, 1).ticks(4)
        [0.0, 0.5, 1.0]
        """
        span = self.high - self.low
        if span <= 0 or not math.isfinite(span):
            return [self.low]
        raw = span / most
        scale = 10.0 ** math.floor(math.log10(raw))
        step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis(values: Iterable[float], first: float, last: float, *, room: bool = False) -> Axis:
    """Return the axis on which numbers lie, at least one; with ``room`` none of them at its ends."""
    found = list(values)
    low, high = min(found), max(found)
    margin = ((high - low) * 0.06 or abs(low) * 0.1 or 1.0) * room
    return Axis(low - margin, high + margin, first, last)


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number as people read it.

    >>> figure(1234567), figure(0.0123456), figure(None), figure(float("nan"))
    ('1.23M', '0.0123', '', 'nan')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.{digits}g}{unit}"
    return f"{int(value)}" if value == int(value) else f"{value:.{digits}g}"
