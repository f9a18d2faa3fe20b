"""What a test expects of a record that it has read."""

from trinity_bus.bus import Received
from trinity_bus.bus.read.received import Undecodable


def record_of[R](received: Received[R]) -> R:
    """The record, which must be one that its codec takes."""
    assert not isinstance(received.record, Undecodable), received.record
    return received.record
