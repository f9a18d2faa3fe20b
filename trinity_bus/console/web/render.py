r"""Pages out of templates: every value is escaped, and every link leads to the moment that is looked at.

The one who looks sees a :class:`Frame` around each page; a page that is open asks for what is inside it alone, again
and again.

Text that a model, a task or a stranger wrote is never markup, never steers what shows it, and hides nothing: whatever
cannot be seen is shown by its name, as are marks that turn the order of what is read (U+202E and its like), and escapes
that terminals obey. Long text is cut, and says by how much.

>>> str(hostile("<b>a\u202eb"))
'&lt;b&gt;a<span class="mark" title="U+202E RIGHT-TO-LEFT OVERRIDE">[U+202E]</span>b'

The charts of ``charts.html`` have as many points as can be seen, axes, and numbers for people.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from trinity_bus.console.web.who import Visitor

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


SHOWN_CHARS: Final = 20_000  # Of one text on a page; a click shows more of it
_MOST_MARKS: Final = 1000  # In one text: each takes as much of a page as seventy characters
_LINE_CHARS: Final = 300  # Of a text in a table
_MAX_COMBINING: Final = 3  # Marks upon one letter; more of them draw over the lines around it
_CONTROL_PICTURES: Final = 0x2400

# All that is not printable but line feed and tab, found at the speed of the regular expression; each is looked at then.
_SUSPECT: Final = re.compile(r"[^\t\n\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0482\u048a-\u052f]")


def hostile(text: str, most: int = SHOWN_CHARS) -> Markup:
    """Return text as markup that shows it, and does nothing else."""
    shown, left = text[:most], len(text) - most
    parts: list[str] = []
    begin = combining = marks = 0
    last = -1
    for found in _SUSPECT.finditer(shown):
        place = found.start()
        combining = combining + 1 if unicodedata.combining(shown[place]) and place == last + 1 else 0
        last = place
        mark = _mark(shown[place], combining)
        if mark is not None:
            if marks == _MOST_MARKS:
                shown, left = text[:place], len(text) - place
                break
            marks += 1
            parts += [escape(shown[begin:place]), mark]
            begin = place + 1
    parts.append(escape(shown[begin:]))
    if left > 0:
        parts.append(f'<span class="mark" title="not shown here">[{left:,} more characters]</span>')
    return Markup("".join(parts))  # noqa: S704 - all that came from outside is escaped above


def line(text: str, most: int = _LINE_CHARS) -> Markup:
    """Return text as one line of markup: what would end the line is shown as what it is."""
    return hostile(text.replace("\r\n", "⏎").replace("\n", "⏎").replace("\t", " "), most)


def moment(seconds: float | None) -> str:
    """Return a time of the log as people read it, in UTC.

    >>> moment(0.5), moment(None)
    ('1970-01-01 00:00:00', '')
    """
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _mark(character: str, combining: int) -> str | None:
    if (character.isprintable() and combining <= _MAX_COMBINING) or character == "\u3000":
        return None
    code = ord(character)
    title = f"U+{code:04X} {unicodedata.name(character, '')}".strip()
    label = chr(_CONTROL_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"
    return f'<span class="mark" title="{title}">{label}</span>'


STATIC: Final = Path(__file__).parent / "static"  # What pages load beside their HTML

MAX_QUERY: Final = 2000  # Characters of a link's question: one that is longer is not answered
_TEMPLATES: Final = Path(__file__).parent / "templates"
# Path, title, and the key that leads there after a ``g``
MENU: Final = (
    ("/", "Overview", "o"),
    ("/batches", "Batches", "b"),
    ("/steps", "Steps", "s"),
    ("/samples", "Samples", "a"),
    ("/versions", "Versions", "v"),
    ("/compare", "Compare", "c"),
    ("/dead-letters", "Dead letters", "d"),
    ("/configuration", "Configuration", "f"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    namespace: str
    visitor: Visitor
    path: str
    names: Mapping[str, str] = field(default_factory=dict)  # What the path names: a step, a task
    query: Mapping[str, str] = field(default_factory=dict)  # What the link asks, but for the moment
    pairs: Sequence[tuple[str, str]] = ()  # The same, with what is asked more than once
    until: float | None = None  # The moment that is looked at; None: now
    begin: float | None = None  # The oldest moment that can be; None: not known
    now: float = 0.0
    theme: str = ""  # ``light`` or ``dark``; empty: as the system has it
    trouble: str = ""  # Why what is shown may be old
    is_record: bool = False  # Whether the log is that of a run that has ended
    can_log_out: bool = False
    part: bool = False  # Whether only what is inside is asked for

    def url(self, path: str, /, **query: object) -> str:
        """Return a link that keeps the moment. What is None or empty is left out."""
        moment = {} if self.until is None else {"until": f"{self.until:.3f}"}
        asked = {name: str(value) for name, value in {**moment, **query}.items() if value not in {None, ""}}
        return f"{path}?{urlencode(asked)}" if asked else path

    @property
    def now_link(self) -> str:
        return f"{self.path}?{urlencode(self.pairs)}" if self.pairs else self.path

    def here(self, /, **query: object) -> str:
        return self.url(self.path, **{**self.query, **query})


class Pages:
    """``jaeger`` is the address that traces are links to; empty: they are none."""

    def __init__(self, jaeger: str = "") -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            hostile=hostile, line=line, figure=figure, moment=moment, span=span, doc=doc,
            below=lambda value: math.nextafter(value, -math.inf),
        )  # fmt: skip
        self._environment.globals.update(menu=MENU, axis=axis, jaeger=jaeger.rstrip("/"))

    def render(self, template: str, frame: Frame, **values: Any) -> str:
        layout = "part.html" if frame.part else "page.html"
        return self._environment.get_template(template).render(frame=frame, layout=layout, url=frame.url, **values)

    def login(self, theme: str, *, wrong: bool) -> str:
        return self._environment.get_template("login.html").render(theme=theme, wrong=wrong)


def doc(text: str) -> Markup:
    """Return what a docstring says, with its code marked.

    >>> doc("``a<b`` or less")
    Markup('<code>a&lt;b</code> or less')
    """
    return Markup(re.sub(r"`+([^`]+)`+", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def span(seconds: float | None) -> str:
    """Return a stretch of time.

    >>> span(0.1234), span(75), span(7300), span(None)
    ('0.12 s', '75 s', '122 min', '')
    """
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 10_000 else f"{seconds / 3600:.1f} h"


def parsed_moment(text: str | None) -> float | None:
    """Return the moment that a link names; None for now. Raises ValueError: it is no time."""
    if not text:
        return None
    seconds = float(text)
    if not 0 <= seconds < 1e11:
        raise ValueError(f"{text!r} is no time: give seconds since the epoch")
    return seconds
