"""What runners and explorers say of kept tokens has limits, and what is no such sets is refused by whoever reads it."""

import threading
import time
from typing import Any

import msgspec
import pytest

from schemas import Answer, DrawnResponse
from schemas.codec import DecodeError, decode, encode
from schemas.errors import RecordError
from schemas.groups.kept import MAX_KEPT_BYTES, decode_kept
from schemas.turn import Turn
from tests.support.fakes.experiences import kept_of
from tests.support.fakes.turns import turn
from trinity_bus.chat import Completion, wire
from trinity_bus.rollout.turns import drawn_responses
from trinity_bus.runners import messages
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.runtime.service import unless_small

ENOUGH_S = 5.0
"""Of the processor; it takes well below one second."""
QUESTION = "0" * 32

ODD: dict[str, tuple[bytes, str]] = {
    "of no token": (b"", "of 0 of 1 response tokens"),
    "of two tokens": (bytes(2), "1 numbers of 1 response tokens, in 2"),
    "of less than it says": (b"\x03\x01", "4 numbers of 1 response tokens, in 2"),
    "of two thousand millions": (b"\xff\xff\xff\xff\x07\x01", "2147483648 numbers of 1 response tokens, in 2"),
    "that ends amid a number": (b"\x01\x80", "end amid a number"),
    "with a long number": (b"\xff\xff\xff\xff\xff\x01", "a number of 6 bytes"),
    "with an id twice": (b"\x02\x05\x00", "an id twice"),
    "with an id that is none": (b"\x01\xff\xff\xff\xff\x0f", "or that is none"),
}


def drawn(kept: bytes, tokens: int = 1) -> dict[str, Any]:
    numbers = bytes(4 * tokens)
    return {"token_ids": numbers, "logprobs": numbers, "finish_reason": "stop", "versions": [[0, 1]], "kept": kept}


def written(kept: bytes, tokens: int = 1) -> bytes:
    """A turn as a runner may write it, who checks nothing."""
    response = drawn(b"", 0) | {"kept": kept_of()}
    good = msgspec.msgpack.decode(
        encode(turn(0, 1, answers=[Answer(question=QUESTION, responses=[DrawnResponse(**response)])]))
    )
    good["answers"][0]["responses"][0].update(drawn(kept, tokens))
    return msgspec.msgpack.encode(good)


@pytest.mark.parametrize("odd", ODD)
def test_sets_that_cannot_be_are_refused_in_frames_and_in_turns(odd: str) -> None:
    kept, why = ODD[odd]
    frame = wire.DrawnFrame(0, bytes(4), bytes(4), kept=kept)
    with pytest.raises(ProtocolError, match=why):
        wire.decode_frame(wire.FRAMES.encode(frame))
    with pytest.raises(RecordError, match=why):
        DrawnResponse(**drawn(kept))
    with pytest.raises(DecodeError, match=why):
        decode(written(kept), Turn)


def test_more_bytes_than_a_sample_may_have_are_refused_and_never_sent() -> None:
    most, over = bytes(MAX_KEPT_BYTES), bytes(MAX_KEPT_BYTES + 1)
    numbers = bytes(4 * len(over))
    with pytest.raises(ProtocolError, match="4194304"):
        wire.decode_frame(wire.FRAMES.encode(wire.DrawnFrame(0, numbers, numbers, kept=over)))
    with pytest.raises(RecordError, match="at most 4194304"):
        DrawnResponse(**drawn(over, len(over)))
    long = Completion([0], [0.0], "stop", [(0, 1)])
    for kept, told in ((most, True), (over, False)):
        long.kept = bytearray(kept)
        assert (wire.frame_of(long).kept is not None) == told


def test_the_longest_sets_are_read_in_a_moment() -> None:
    for kept, tokens in ((bytes(MAX_KEPT_BYTES), MAX_KEPT_BYTES), (kept_of(range(MAX_KEPT_BYTES - 4)), 1)):
        assert MAX_KEPT_BYTES - 8 < len(kept) <= MAX_KEPT_BYTES
        began = time.thread_time()
        assert len(decode_kept(kept, tokens).counts) == tokens
        assert time.thread_time() - began < ENOUGH_S


async def test_what_takes_long_to_read_is_read_by_a_thread() -> None:
    here = threading.get_ident()
    assert await unless_small(1000, threading.get_ident) == here
    assert await unless_small(MAX_KEPT_BYTES, threading.get_ident) != here


def test_a_runner_is_told_and_may_write_no_more_than_a_message_has() -> None:
    over = bytes(messages.MAX_TURNS_BYTES + 1)
    with pytest.raises(DecodeError, match="the limit here is"):
        decode(over, Turn)
    most = 100
    whole = [Completion([5], [-1.0], "stop", [(0, 1)], kept=bytearray(kept_of(range(size)))) for size in (60, 30)]
    assert [one.kept is not None for one in drawn_responses(whole, most)] == [True, True]
    whole[1].kept = bytearray(kept_of(range(50)))
    assert [one.kept for one in drawn_responses(whole, most)] == [None, None], "all of an answer, or none"
