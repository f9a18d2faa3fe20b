"""Charts as SVG that the server draws: no script, and as many points as can be seen, however long the run.

Colours are classes of the style sheet, so that a chart follows light and dark. What a point stands for is its title.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

MAX_POINTS: Final = 160  # Of one line; neighbours are averaged where there are more
_WIDTH: Final = 480
_HEIGHT: Final = 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 22
_TICKS: Final = 4
_BAR_GAP: Final = 2

type Point = tuple[float, float]
type _Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[Point]  # Ascending by x; what is no finite number is passed over


@dataclass(frozen=True, slots=True)
class Bar:
    low: float
    high: float
    count: int
    href: str  # Where a click leads


_NOTHING: Final = Markup('<text class="none" x="{}" y="{}">nothing yet</text>').format(_WIDTH // 2, _HEIGHT // 2)


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


def ticks(low: float, high: float, most: int = _TICKS) -> list[float]:
    """Return round numbers between two.

    >>> ticks(0, 1)
    [0.0, 0.5, 1.0]
    """
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


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


def lines(title: str, series: Sequence[Line], x_name: str = "step") -> Markup:
    """Return a chart of lines on one axis; an empty frame says that there is nothing yet."""
    drawn = [Line(one.name, thinned(one.points)) for one in series]
    points = [point for one in drawn for point in one.points]
    if not points:
        return _frame(title, _NOTHING)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = _room(min(y for _, y in points), max(y for _, y in points))
    at_x = _scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    at_y = _scale(y_low, y_high, _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(at_x, at_y, (x_low, x_high), (y_low, y_high))]
    for number, one in enumerate(drawn):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in one.points)
        parts.append(Markup('<polyline class="line s{}" points="{}"/>').format(number, path))
        parts += [
            Markup('<circle class="dot s{}" cx="{}" cy="{}" r="{}"><title>{}{} {}: {}</title></circle>').format(
                number, f"{at_x(x):.1f}", f"{at_y(y):.1f}", 3, f"{one.name}, " if len(drawn) > 1 else "", x_name,
                figure(x, 6), figure(y, 4),
            )
            for x, y in one.points
        ]  # fmt: skip
    return _frame(title, Markup("").join(parts))


def histogram(title: str, bars: Sequence[Bar]) -> Markup:
    """Return bars that are links: each leads to what it counts."""
    most = max((bar.count for bar in bars), default=0)
    if not most:
        return _frame(title, _NOTHING)
    low, high = bars[0].low, bars[-1].high
    at_x = _scale(low, high, _LEFT, _WIDTH - _RIGHT)
    at_y = _scale(0, most, _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(at_x, at_y, (low, high), (0, most))]
    for bar in bars:
        left, right, top = at_x(bar.low), at_x(bar.high), at_y(bar.count)
        parts.append(
            Markup(
                '<a href="{}"><rect class="hit" x="{}" y="{}" width="{}" height="{}"/>'
                '<rect class="bar" x="{}" y="{}" width="{}" height="{}"/><title>{} to {}: {}</title></a>'
            ).format(
                *(bar.href, f"{left:.1f}", _TOP, f"{right - left:.1f}", _HEIGHT - _BOTTOM - _TOP),
                *(f"{left:.1f}", f"{top:.1f}"),
                *(f"{max(1.0, right - left - _BAR_GAP):.1f}", f"{_HEIGHT - _BOTTOM - top:.1f}"),
                *(figure(bar.low), figure(bar.high), bar.count),
            )
        )
    return _frame(title, Markup("").join(parts))


def marks(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]) -> Markup:
    """Return moments on an axis of time, a row for each of those to whom they happened; of many the newest."""
    shown = [(name, moments[-MAX_POINTS:]) for name, moments in rows if moments]
    if not shown:
        return Markup("")
    times = [at for _, moments in shown for at, _ in moments]
    height, left, width = 24, 150, 760
    at_x = _scale(min(times), max(times), left, width - 12)
    parts = []
    for number, (name, moments) in enumerate(shown):
        y = number * height + 14
        parts.append(
            Markup(
                '<text class="name" x="{}" y="{}">{}</text><line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>'
            ).format(left - 12, y + 4, name, left, width - 12, y=y)
        )
        parts += [
            Markup('<circle class="dot s{}" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(
                0 if number == 0 else 1, f"{at_x(at):.1f}", y, told
            )
            for at, told in moments
        ]
    return _frame(title, Markup("").join(parts), width, len(shown) * height + 6, "timeline")


def _frame(title: str, inside: Markup, width: int = _WIDTH, height: int = _HEIGHT, kind: str = "chart") -> Markup:
    # What is in a picture is hidden from who cannot see it: links in it could not be followed.
    role = "group" if "<a " in inside else "img"
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>').format(
        kind, width, height, role, title, inside
    )


def _grid(at_x: _Scale, at_y: _Scale, x_range: Point, y_range: Point) -> Markup:
    parts = [
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/><text class="tick y" x="{}" y="{}">{}</text>'
        ).format(_LEFT, _WIDTH - _RIGHT, _LEFT - 6, f"{at_y(value) + 4:.1f}", figure(value), y=f"{at_y(value):.1f}")
        for value in ticks(*y_range)
    ]
    parts += [
        Markup('<text class="tick x" x="{}" y="{}">{}</text>').format(
            f"{at_x(value):.1f}", _HEIGHT - 6, figure(value, 6)
        )
        for value in ticks(*x_range, 6)
    ]
    return Markup("").join(parts)


def _scale(low: float, high: float, first: float, last: float) -> _Scale:
    span = (high - low) or 1.0
    return lambda value: first + (value - low) / span * (last - first)


def _room(low: float, high: float) -> Point:
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    margin = (high - low) * 0.06
    return low - margin, high + margin
