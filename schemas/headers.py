"""Kafka record headers that every client may meet. Values are UTF-8."""

CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"  # W3C trace context: the span that sent this record
TRACESTATE = "tracestate"

MSGPACK = "application/vnd.msgpack"  # the registered media type of msgpack
JSON = "application/json"

# on dead letters: one word, of ``DecodeError.reason`` or of the reader that refused the record
DLQ_REASON = "dlq.reason"
DLQ_DETAIL = "dlq.detail"  # one line for people
DLQ_TOPIC = "dlq.topic"  # the topic that it came from, without the namespace
DLQ_PARTITION = "dlq.partition"
DLQ_OFFSET = "dlq.offset"
DLQ_LAST_OFFSET = "dlq.last_offset"  # the last of the offsets, where a whole batch of records cannot be read
DLQ_SIZE = "dlq.size"  # where the value is only the beginning: how large all of it was, in bytes
DLQ_SHA256 = "dlq.sha256"  # likewise: the hash of all of it, in hexadecimal
