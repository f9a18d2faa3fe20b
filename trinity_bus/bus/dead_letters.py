"""Dead letters: records that could not be taken, kept as they came, with the reason beside them.

A dead letter has the key, value and headers of the record that it stands for; what is added is in ``dlq.`` headers (see
:mod:`trinity_bus.bus.headers`). Producing its key, value and remaining headers to the topic named there tries it again.
"""

from typing import Any

from trinity_bus.bus.headers import DLQ_DETAIL, DLQ_OFFSET, DLQ_PARTITION, DLQ_REASON, DLQ_TOPIC, Headers
from trinity_bus.bus.received import Received

MAX_DETAIL_BYTES = 2000
_OWN = frozenset({DLQ_REASON, DLQ_DETAIL, DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET})


def dead_letter(received: Received[Any], reason: str, detail: str) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of the dead letter for a record.

    Args:
        received: The record that could not be taken.
        reason: One machine-readable word, such as ``"unknown_workflow"``.
        detail: A sentence for people; cut at 2,000 bytes.
    """
    kept = tuple((name, value) for name, value in received.headers if name not in _OWN)
    added = (
        (DLQ_REASON, reason.encode()),
        (DLQ_DETAIL, detail.encode("utf-8", "backslashreplace")[:MAX_DETAIL_BYTES]),
        (DLQ_TOPIC, received.topic.name.encode()),
        (DLQ_PARTITION, str(received.partition).encode()),
        (DLQ_OFFSET, str(received.offset).encode()),
    )
    return received.raw_key, None if received.is_null else received.raw, kept + added
