"""Ids of answers: by which kind of client they were asked for, when, and a random part. Pure.

::

    chatcmpl-019ab3c4d5e6f00dfeedbeefcafe0123
    '-------''----------''------------------'
    kind     ms, epoch   80 random bits

The time is where another gateway begins to look for the answer on the log.
"""

import re
import secrets
from typing import Final

_ID: Final = re.compile(r"(?:chatcmpl-|cmpl-|msg_)([0-9a-f]{12})[0-9a-f]{20}")


def new_answer_id(kind: str, now: float) -> str:
    """Return an id that nothing else has; ``kind`` is how it begins, ``now`` seconds since the epoch."""
    return f"{kind}{round(now * 1000):012x}{secrets.token_hex(10)}"


def asked_at(answer_id: str) -> float | None:
    """Return when an answer was asked for, seconds since the epoch; None where no gateway gives such an id."""
    found = _ID.fullmatch(answer_id)
    return None if found is None else int(found[1], 16) / 1000
