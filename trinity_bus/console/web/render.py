"""Pages out of templates: every value is escaped, and every link leads to the moment that is looked at.

The one who looks sees a :class:`Frame` around each page; a page that is open asks for what is inside it alone, again
and again.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from trinity_bus.console.web import charts, text
from trinity_bus.console.web.who import Visitor

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
            hostile=text.hostile, line=text.line, figure=charts.figure, moment=text.moment, span=span, doc=doc,
            below=lambda value: math.nextafter(value, -math.inf),
        )  # fmt: skip
        self._environment.globals.update(menu=MENU, axis=charts.axis, jaeger=jaeger.rstrip("/"))

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
