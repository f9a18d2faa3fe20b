"""Answers to commands that were given, so that a command that is sent again is answered the same way again.

What a batch came to is not kept here but with the batch's outcome, once for all who ask. A ``FinalizeBatch`` that got
it asks for it anew when it is sent again, and gets the same.
"""

import msgpack

from schemas import CommandReply, PublishVersion, RollBack
from trinity_bus.coordination.commands import Reply
from trinity_bus.coordination.inputs import Request
from trinity_bus.coordination.journal import Journal
from trinity_bus.coordination.memory import Memory

REPLIES_KEPT = 4096
_MAX_BYTES = 8 << 20


class Replies:
    """The last answers, by client and command id.

    Args:
        journal: Told of every change.
    """

    def __init__(self, journal: Journal) -> None:
        self.memory = Memory("replies", REPLIES_KEPT, _MAX_BYTES, journal)

    def again(self, command: Request, traceparent: str | None) -> Reply | None:
        """The answer that the command got when it was sent before; None if it was not, or too long ago."""
        kept = self.memory.get(_name(command))
        if kept is None:
            return None
        error, detail = msgpack.unpackb(kept)
        return _reply(command, error, detail, traceparent)

    def give(self, command: Request, error: str | None, detail: str, traceparent: str | None) -> Reply:
        """The answer to a command, remembered."""
        self.memory.add(_name(command), msgpack.packb((error, detail)))
        return _reply(command, error, detail, traceparent)


def _name(command: Request) -> str:
    # A blank is in no identifier.
    return f"{command.client} {command.command_id}"


def _reply(command: Request, error: str | None, detail: str, traceparent: str | None) -> Reply:
    record = CommandReply(
        client=command.client,
        command_id=command.command_id,
        batch_id=command.model if isinstance(command, PublishVersion | RollBack) else command.batch_id,
        error=error,
        detail=detail,
    )
    return Reply(record, traceparent)
