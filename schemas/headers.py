"""Kafka record headers that every client may meet. Values are UTF-8."""

CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"
"""W3C trace context: the span that sent this record."""
TRACESTATE = "tracestate"

MSGPACK = "application/vnd.msgpack"
"""The registered media type of msgpack."""
JSON = "application/json"
