"""CloudEvents' attributes as headers (Kafka's binary content mode), of topics that programs outside the mesh follow.

See https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/kafka-protocol-binding.md. Nothing in the mesh
reads them.

An id follows from the bytes of a record, and that of a dead letter from where the refused record lies. So a record that
is written twice has one id: by a coordinator whose first transaction was aborted, which readers of uncommitted records
see, or by a reader that refuses it once more after a restart. A version that is announced again is another record: it
has a new secret, and so another id.
"""

import hashlib
import time
from datetime import UTC, datetime
from functools import lru_cache

from schemas.topic import CE_ID, CE_SOURCE, CE_SPECVERSION, CE_TIME, CE_TYPE, Topic

type Headers = tuple[tuple[str, bytes], ...]


def record_headers(namespace: str, topic: Topic, schema: str, version: int, value: bytes) -> Headers:
    event_id = hashlib.blake2b(value, digest_size=16).hexdigest().encode()
    return *_constant(namespace, topic.name, schema, version), (CE_ID, event_id), (CE_TIME, _now())


def dead_letter_headers(namespace: str, topic: Topic, place: str) -> Headers:
    return *_constant(namespace, topic.name, "dead_letter", 1), (CE_ID, place.encode()), (CE_TIME, _now())


@lru_cache(maxsize=64)
def _constant(namespace: str, topic: str, schema: str, version: int) -> Headers:
    # ``results`` has one for each task.
    return (
        (CE_SPECVERSION, b"1.0"),
        (CE_SOURCE, f"/{namespace}/{topic}".encode()),
        (CE_TYPE, f"trinity-bus.{schema}.v{version}".encode()),
    )


def _now() -> bytes:
    return _time_of(int(time.time() * 100))


@lru_cache(maxsize=1)
def _time_of(hundredths: int) -> bytes:
    return datetime.fromtimestamp(hundredths / 100, UTC).isoformat().encode()
