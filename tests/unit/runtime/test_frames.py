import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from trinity_bus.runtime.frames import Dialect, FrameReader, ProtocolError, head_of, read_frame


class Say(Struct, tag=True):
    text: str


class Count(Struct, tag=True):
    number: int


SPOKEN: Dialect[Say | Count] = Dialect(Say | Count, limit=64)
TOO_LONG = Say("x" * 64)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 200), min_size=1))
def test_frames_are_the_same_however_a_socket_cuts_them(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(head_of(one, 300) + one for one in bodies)
    frames, found, start = FrameReader(300), [], 0
    for i in range(len(stream)):
        size = cuts[i % len(cuts)]
        found += list(frames.feed(stream[start : start + size]))
        start += size
        if start >= len(stream):
            break
    assert found == bodies
    file = io.BytesIO(stream)
    assert [read_frame(file, 300) for _ in bodies] == bodies
    assert read_frame(file, 300) is None


@pytest.mark.parametrize("message", [Say("é"), Count(7)])
def test_messages_arrive_as_they_were(message: Any) -> None:
    assert SPOKEN.decode(SPOKEN.encode(message)) == message
    frame = SPOKEN.frame(message)
    assert read_frame(io.BytesIO(frame), SPOKEN.limit) == SPOKEN.encode(message)
    # A file that ends within a frame has ended.
    assert [read_frame(io.BytesIO(frame[:cut]), SPOKEN.limit) for cut in (2, 4, 5)] == [None] * 3


def test_what_is_too_long_or_cannot_be_encoded_is_refused_and_leaves_nothing_behind() -> None:
    buffer = bytearray(b"before")
    for send in (SPOKEN.encode, SPOKEN.frame, lambda message: SPOKEN.append(buffer, message)):
        with pytest.raises(ProtocolError, match=r"a message of \d+ bytes, at most 64 are allowed"):
            send(TOO_LONG)
    assert buffer == b"before"
    head = (65).to_bytes(4, "big")
    for read in (lambda: list(FrameReader(64).feed(head)), lambda: read_frame(io.BytesIO(head), 64)):
        with pytest.raises(ProtocolError, match="a frame of 65 bytes, at most 64 are allowed"):
            read()
    with pytest.raises(ProtocolError, match="a message of 65 bytes"):
        SPOKEN.decode(bytes(65))
    with pytest.raises(ProtocolError, match="a message of 65 bytes"):
        head_of(bytes(65), 64)
    buffer = bytearray(b"before")
    with pytest.raises(UnicodeEncodeError):
        SPOKEN.append(buffer, Say("\ud83d"))
    assert buffer == b"before"
