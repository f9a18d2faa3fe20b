"""One send, from the hand-over to the client until its record is durable or is known never to be."""

import asyncio
import time

from aiokafka.structs import RecordMetadata
from opentelemetry.trace import Span

from schemas.event import Position
from schemas.topic import Topic
from trinity_bus.bus.connection import translated
from trinity_bus.bus.spans import end_send_span
from trinity_bus.errors import BusError, ProducerFencedError, RecordTooLargeError, SendError
from trinity_bus.telemetry import metrics

RECORD_OVERHEAD_BYTES = 512  # more than a batch header and a record header take on the wire


class Delivery:
    """Ends the span, keeps the metrics and resolves ``position`` when the client knows the outcome."""

    def __init__(self, topic: Topic, doing: str, span: Span | None) -> None:
        self.position: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._topic = topic.name
        self._doing = doing
        self._span = span
        self._records = 1
        self._started = time.perf_counter()

    def accepted(self, sending: asyncio.Future[RecordMetadata], records: int = 1) -> None:
        # ``records``: how many it stands for, with the first's position.
        self._records = records
        sending.add_done_callback(self._settle)

    def refused(self, error: BaseException) -> None:
        self._tell(None, error)

    def _settle(self, sending: asyncio.Future[RecordMetadata]) -> None:
        position, error = _outcome(sending, self._doing)
        self._tell(position, error)
        if self.position.done():
            return
        if position is not None:
            self.position.set_result(position)
        elif error is not None:
            self.position.set_exception(error)

    def _tell(self, position: Position | None, error: BaseException | None) -> None:
        if self._span is not None:
            end_send_span(self._span, position, error)
        attributes = metrics.messaging("send", self._topic, None if error is None else type(error).__name__)
        metrics.SENT_MESSAGES.add(self._records, attributes)
        metrics.SEND_DURATION.record(time.perf_counter() - self._started, attributes)


def check(
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    partition: int | None,
    headers: list[tuple[str, bytes]],
    *,
    max_message_bytes: int,
) -> None:
    """Refuse what the broker would refuse, before anything is queued. Raises RecordTooLargeError or SendError."""
    if key is None and value is None:
        raise SendError(f"send to {topic.name}: a record needs a key or a value")
    if partition is not None and not 0 <= partition < topic.partitions and not topic.grows:
        raise SendError(f"send to {topic.name}: partition {partition} is not one of its {topic.partitions}")
    size = len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)
    if size + RECORD_OVERHEAD_BYTES > max_message_bytes:
        raise RecordTooLargeError(
            f"a record of {size:,} bytes is over the limit of topic {topic.name}, {max_message_bytes:,} bytes: split it"
        )


def _outcome(sending: asyncio.Future[RecordMetadata], doing: str) -> tuple[Position | None, BusError | None]:
    if sending.cancelled():
        return None, SendError(f"{doing}: cancelled before it was durable")
    error = sending.exception()
    if error is None:
        metadata = sending.result()
        return Position(partition=metadata.partition, offset=metadata.offset), None
    known = translated(error, doing)
    return None, known if isinstance(known, ProducerFencedError | RecordTooLargeError) else SendError(str(known))
