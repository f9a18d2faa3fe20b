"""What is said in one turn of the event loop is written at once; what nobody can hear is dropped."""

import asyncio
from typing import cast

from trinity_bus.runners.frame_writer import FLUSH_BYTES, FrameWriter
from trinity_bus.runners.messages import TO_EXPLORER, RunCancelled, RunFailed, to_explorer
from trinity_bus.runtime.frames import FrameReader


class Written:
    """A FAKE transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytearray) -> None:
        self.pieces.append(bytes(data))

    @property
    def transport(self) -> asyncio.WriteTransport:
        return cast("asyncio.WriteTransport", self)

    @property
    def messages(self) -> list[object]:
        return [to_explorer(body) for body in FrameReader(TO_EXPLORER.limit).feed(b"".join(self.pieces))]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_messages_of_one_turn_are_one_write_and_keep_their_order() -> None:
    outbox, written = FrameWriter(TO_EXPLORER), Written()
    outbox.connected(written.transport)
    for job in range(5):
        outbox.send(RunCancelled(job))
    assert written.pieces == []
    await turn()
    assert len(written.pieces) == 1
    outbox.send(RunCancelled(5))
    await turn()
    assert written.messages == [RunCancelled(job) for job in range(6)]


async def test_what_is_said_before_there_is_a_socket_is_kept() -> None:
    outbox, written = FrameWriter(TO_EXPLORER), Written()
    outbox.send(RunCancelled(1))
    await turn()
    outbox.connected(written.transport)
    assert written.messages == [RunCancelled(1)]


async def test_much_is_written_at_once() -> None:
    outbox, written = FrameWriter(TO_EXPLORER), Written()
    outbox.connected(written.transport)
    long = RunFailed(1, "Error", "x" * FLUSH_BYTES)
    outbox.send(long)
    assert written.messages == [long]


async def test_after_the_end_nothing_is_written() -> None:
    outbox, written = FrameWriter(TO_EXPLORER), Written()
    outbox.connected(written.transport)
    outbox.send(RunCancelled(1))
    outbox.close()
    outbox.send(RunCancelled(2))
    await turn()
    assert written.pieces == []
