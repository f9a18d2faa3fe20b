"""Names of batches on the log, for ids that callers choose: any text.

A character that no identifier has in its place, and ``#``, which ends the batch in the ids of its tasks, is written as
``u:<code point in hex>:``. So an id that is an identifier is its own name, and a name may be given where an id is.

>>> escaped("2/held out"), readable("2/heldu:20:out")
('2/heldu:20:out', '2/held out')
"""

import re

_ODD = re.compile(r"^[^A-Za-z0-9]|[^A-Za-z0-9._:/@-]")
_ESCAPE = re.compile(r"u:([0-9a-f]{2,6}):")


def escaped(batch_id: str) -> str:
    """Return the name of a batch. It is an identifier, but for its length."""
    return _ODD.sub(lambda found: f"u:{ord(found[0]):02x}:", batch_id)


def readable(name: str) -> str:
    """Return the id of a batch, for people; what cannot be printed stays escaped."""
    return _ESCAPE.sub(_character, name)


def _character(found: re.Match[str]) -> str:
    code = int(found[1], 16)
    return chr(code) if code <= 0x10FFFF and chr(code).isprintable() else found[0]
