import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.vectors import INT32
from trinity_bus.inference.completion import EngineCompletion
from trinity_bus.runners import messages
from trinity_bus.runners.errors import ProtocolError
from trinity_bus.runners.messages import (
    CancelRun,
    Completions,
    FrameReader,
    Generate,
    Ping,
    Pong,
    Run,
    RunCancelled,
    RunDone,
    RunFailed,
    append_frame,
    pack_completions,
    pack_vector,
    to_explorer,
    to_runner,
    unpack_completions,
    unpack_vector,
)


def body(message: messages.ToRunner | messages.ToExplorer) -> bytes:
    buffer = bytearray()
    append_frame(buffer, message)
    (found,) = FrameReader().feed(bytes(buffer))
    return found


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 200), min_size=1))
def test_frames_are_the_same_however_a_socket_cuts_them(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(one).to_bytes(4, "little") + one for one in bodies)
    frames, found, start = FrameReader(), [], 0
    for i in range(len(stream)):
        size = cuts[i % len(cuts)]
        found += list(frames.feed(stream[start : start + size]))
        start += size
        if start >= len(stream):
            break
    assert found == bodies


def test_a_frame_is_refused_by_its_length_alone() -> None:
    with pytest.raises(ProtocolError, match="a frame of 67174401 bytes, at most 67174400 are allowed"):
        list(FrameReader().feed((messages.MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
    buffer = bytearray(b"before")
    with pytest.raises(ProtocolError, match="a message of"):
        append_frame(buffer, RunFailed(1, "", "x" * messages.MAX_FRAME_BYTES))
    assert buffer == b"before"


def test_messages_to_a_runner_arrive_as_they_were() -> None:
    for message in (Run(1, b"{}", -1, None), CancelRun(2), Ping()):
        assert to_runner(body(message)) == message


def test_messages_to_the_explorer_arrive_as_they_were() -> None:
    for message in (
        RunFailed(1, "ValueError", "no"),
        RunCancelled(2),
        Pong({3: {"turn": 4}}),
        RunDone(5, b"a group", "an error"),
    ):
        assert to_explorer(body(message)) == message
    asked = to_explorer(body(Generate(1, 2, pack_vector([7, 8], INT32), b"{}", 3, "00-trace")))
    assert isinstance(asked, Generate)
    assert unpack_vector(asked.prompt, INT32).tolist() == [7, 8]


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_are_an_error_of_the_protocol(garbage: bytes) -> None:
    for read in (to_runner, to_explorer):
        try:
            read(garbage)
        except ProtocolError:
            continue


def test_one_side_does_not_take_what_only_the_other_may_say() -> None:
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        to_explorer(body(Ping()))
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        to_runner(body(RunCancelled(1)))


def test_completions_arrive_as_plain_lists() -> None:
    sent = [EngineCompletion([5, 6], [-0.5, -0.25], "stop", [(0, 3), (1, 4)]), EngineCompletion([], [], "length", [])]
    message = to_runner(body(pack_completions(1, 2, sent)))
    assert isinstance(message, Completions)
    assert unpack_completions(message) == sent


def test_what_is_no_vector_of_numbers_is_refused_on_both_sides() -> None:
    for wrong in ([[1, 2]], np.zeros((2, 2)), ["a"], [1 << 40]):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            pack_vector(wrong, INT32)
    with pytest.raises(ProtocolError, match="a buffer of 3 bytes"):
        unpack_vector(memoryview(b"abc"), INT32)


def test_buffers_that_are_not_as_long_as_their_parts_are_an_error_of_the_protocol() -> None:
    sent = pack_completions(1, 2, [EngineCompletion([2, 3], [-1.0, -1.0], "stop", [])])
    for changes in ({"token_ids": pack_vector([1], INT32)}, {"logprobs": memoryview(b"")}):
        with pytest.raises(ProtocolError, match="elements in a buffer of"):
            unpack_completions(msgspec.structs.replace(sent, **changes))
