import numpy as np
import pytest

from tests.support.fakes.experiences import kept_of
from tests.support.narrowing import some
from trinity_bus.chat import Completion, wire
from trinity_bus.runtime.frames import ProtocolError


def test_a_response_arrives_as_it_was_drawn() -> None:
    routes = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    sent = Completion([5, 6], [-0.5, -0.25], "stop", [(0, 3), (1, 4)], routes)
    frame = wire.decode_frame(wire.FRAMES.encode(wire.frame_of(sent)))
    assert isinstance(frame, wire.DrawnFrame)
    came = wire.completion_of(frame)
    np.testing.assert_array_equal(came.routes, routes)
    came.routes = sent.routes = None
    assert came == sent
    sent.routes = routes
    assert wire.frame_of(sent, most_routes=11).routes is None


def test_the_sets_of_kept_tokens_follow_each_other_and_what_has_none_counts() -> None:
    drawing = Completion([], [], "", [])
    for token, kept in ((5, None), (6, kept_of([6, 9])), (7, None)):
        part = Completion([token], [-0.5], "", [], kept=None if kept is None else bytearray(kept))
        wire.take_frame(drawing, wire.frame_of(part))
    assert bytes(some(drawing.kept)) == kept_of([], [6, 9], [])


def test_what_is_too_large_is_refused_before_it_is_there() -> None:
    with pytest.raises(ProtocolError, match="a frame of"):
        list(wire.frame_reader().feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4)))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (wire.DrawnFrame(0, b"1234", b""), "other tokens than log-probabilities"),
        (wire.DrawnFrame(0, b"123", b"123"), "no vector"),
        (wire.DrawnFrame(0, wire.token_bytes([-1]), wire.logprob_bytes([0.0])), "no token"),
        (wire.DrawnFrame(0, b"", b"", routes=wire.Routes(b"abc", 2, 1)), "routes of a part of a token"),
        (wire.DrawnFrame(0, b"1234", b"1234", kept=b"\0\0"), "kept tokens with 1 numbers of 1 response tokens, in 2"),
        (wire.ScoredFrame(b"abc"), "no vector"),
    ],
)
def test_frames_that_say_nothing_whole_are_refused(frame: wire.Frame, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        wire.decode_frame(wire.FRAMES.encode(frame))


@pytest.mark.parametrize("wrong", [[[1, 2]], np.zeros((2, 2)), ["a"], [1 << 40]])
def test_what_is_no_vector_of_numbers_is_not_sent(wrong: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        wire.token_bytes(wrong)
