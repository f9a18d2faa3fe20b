"""What is said in one turn of the event loop is written at once; what nobody can hear is dropped."""

import asyncio
from typing import cast

from trinity_bus.runners.link import FLUSH_BYTES, FrameConnection
from trinity_bus.runners.messages import TO_EXPLORER, RunCancelled, RunFailed, ToExplorer, to_explorer
from trinity_bus.runtime.frames import FrameReader, ProtocolError


class Written:
    """A FAKE transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.aborted = False

    def write(self, data: bytearray) -> None:
        self.pieces.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True

    def connect(self, connection: FrameConnection[ToExplorer]) -> None:
        connection.connection_made(cast("asyncio.WriteTransport", self))

    @property
    def messages(self) -> list[object]:
        return [to_explorer(body) for body in FrameReader(TO_EXPLORER.limit).feed(b"".join(self.pieces))]


def connection(over: list[ProtocolError | None] | None = None) -> FrameConnection[ToExplorer]:
    return FrameConnection(TO_EXPLORER, 100, to_explorer, ([] if over is None else over).append)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_messages_of_one_turn_are_one_write_and_keep_their_order() -> None:
    outbox, written = connection(), Written()
    outbox.send(RunCancelled(0))
    await turn()
    # What is said before there is a socket is kept.
    written.connect(outbox)
    assert written.messages == [RunCancelled(0)]
    for job in range(1, 6):
        outbox.send(RunCancelled(job))
    assert len(written.pieces) == 1
    await turn()
    assert len(written.pieces) == 2
    outbox.send(RunCancelled(6))
    await turn()
    assert written.messages == [RunCancelled(job) for job in range(7)]
    long = RunFailed(1, "Error", "x" * FLUSH_BYTES)
    outbox.send(long)
    assert written.messages[-1] == long


async def test_after_the_end_nothing_is_written() -> None:
    outbox, written = connection(), Written()
    written.connect(outbox)
    outbox.send(RunCancelled(1))
    outbox.close()
    outbox.send(RunCancelled(2))
    await turn()
    assert (written.pieces, written.aborted) == ([], True)


async def test_it_is_told_once_that_the_other_side_is_gone_and_never_of_its_own_end() -> None:
    over: list[ProtocolError | None] = []
    heard = connection(over)
    heard.data_received((200).to_bytes(4))
    assert isinstance(over.pop(), ProtocolError)
    heard.connection_lost(None)
    heard.connection_lost(None)
    assert over == [None]
    closed = connection(over)
    closed.close()
    closed.connection_lost(None)
    assert over == [None]
