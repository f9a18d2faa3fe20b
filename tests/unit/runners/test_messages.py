import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.groups.vectors import INT32
from trinity_bus.chat.messages import Completion
from trinity_bus.runners import messages
from trinity_bus.runners.messages import (
    TO_RUNNER,
    CancelRun,
    Completions,
    Generate,
    Ping,
    Pong,
    Run,
    RunCancelled,
    RunDone,
    RunFailed,
    pack_completions,
    pack_vector,
    to_explorer,
    unpack_completions,
    unpack_vector,
)
from trinity_bus.runtime.frames import ProtocolError


def body(message: messages.ToRunner | messages.ToExplorer) -> bytes:
    return msgspec.msgpack.encode(message)


def test_messages_to_a_runner_arrive_as_they_were() -> None:
    for message in (Run(1, b"{}", -1, None), CancelRun(2), Ping()):
        assert TO_RUNNER.decode(body(message)) == message


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
    for read in (TO_RUNNER.decode, to_explorer):
        try:
            read(garbage)
        except ProtocolError:
            continue


def test_one_side_does_not_take_what_only_the_other_may_say() -> None:
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        to_explorer(body(Ping()))
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        TO_RUNNER.decode(body(RunCancelled(1)))


def test_completions_arrive_as_plain_lists() -> None:
    sent = [Completion([5, 6], [-0.5, -0.25], "stop", [(0, 3), (1, 4)]), Completion([], [], "length", [])]
    message = TO_RUNNER.decode(body(pack_completions(1, 2, sent)))
    assert isinstance(message, Completions)
    assert unpack_completions(message) == sent


def test_routes_arrive_as_they_were_chosen() -> None:
    routes = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    plain = Completion([5, 6], [-0.5, -0.25], "stop", [])
    routed = Completion([7], [-0.5], "stop", [], routes)
    message = TO_RUNNER.decode(body(pack_completions(1, 2, [plain, routed])))
    assert isinstance(message, Completions)
    first, second = unpack_completions(message)
    assert first == plain
    np.testing.assert_array_equal(second.routes, routes)
    with pytest.raises(ProtocolError, match=r"ends within an array of \[3, 2, 2\]"):
        unpack_completions(msgspec.structs.replace(message, routes=message.routes[:8]))


def test_what_is_no_vector_of_numbers_is_refused_on_both_sides() -> None:
    for wrong in ([[1, 2]], np.zeros((2, 2)), ["a"], [1 << 40]):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            pack_vector(wrong, INT32)
    with pytest.raises(ProtocolError, match="a buffer of 3 bytes"):
        unpack_vector(memoryview(b"abc"), INT32)


def test_buffers_that_are_not_as_long_as_their_parts_are_an_error_of_the_protocol() -> None:
    sent = pack_completions(1, 2, [Completion([2, 3], [-1.0, -1.0], "stop", [])])
    for changes in ({"token_ids": pack_vector([1], INT32)}, {"logprobs": memoryview(b"")}):
        with pytest.raises(ProtocolError, match="elements in a buffer of"):
            unpack_completions(msgspec.structs.replace(sent, **changes))
