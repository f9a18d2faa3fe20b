r"""Text that a model, a task or a stranger wrote, made fit to be looked at.

It is never markup, never steers what shows it, and hides nothing: whatever cannot be seen is shown by its name, as are
marks that turn the order of what is read (U+202E and its like), and escapes that terminals obey. Long text is cut, and
says by how much.

>>> str(hostile("<b>a\u202eb"))
'&lt;b&gt;a<span class="mark" title="U+202E RIGHT-TO-LEFT OVERRIDE">[U+202E]</span>b'
"""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

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
