"""Kafka record headers that every client may meet. Values are UTF-8."""

CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"
"""W3C trace context: the span that sent this record."""
TRACESTATE = "tracestate"

MSGPACK = "application/vnd.msgpack"
"""The registered media type of msgpack."""
JSON = "application/json"

DLQ_REASON = "dlq.reason"
"""On dead letters: one word for machines, of ``DecodeError.reason`` or of the reader that refused the record."""
DLQ_DETAIL = "dlq.detail"
"""One line for people."""
DLQ_TOPIC = "dlq.topic"
"""The topic that it came from, without the namespace."""
DLQ_PARTITION = "dlq.partition"
DLQ_OFFSET = "dlq.offset"
