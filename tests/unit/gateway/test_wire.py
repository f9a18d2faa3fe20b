import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.narrowing import some
from trinity_bus.gateway import wire
from trinity_bus.runtime.frames import ProtocolError

drawn = st.builds(
    lambda tokens, **fields: wire.DrawnFrame(
        token_ids=wire.token_bytes(tokens), logprobs=wire.logprob_bytes([-0.5] * len(tokens)), **fields
    ),
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    index=st.integers(0, 9),
    version=st.integers(-1, 5),
    finish_reason=st.none() | st.just("stop"),
    versions=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
    routes=st.none()
    | st.builds(
        lambda tokens, layers, k: wire.told_routes(np.ones((tokens, layers, k), np.uint8)),
        st.integers(0, 5),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
)
others = (
    st.builds(wire.FailedFrame, reason=st.text(max_size=20))
    | st.builds(wire.SaidFrame, text=st.text(max_size=20))
    | st.builds(wire.ScoredFrame, logprobs=st.just(wire.logprob_bytes([-0.5, 0.0])))
)
frames = st.lists(drawn | others, max_size=8)


@given(frames, st.integers(1, 50))
def test_frames_arrive_in_whatever_pieces_they_come(sent: list[wire.Frame], size: int) -> None:
    data = b"".join(map(wire.FRAMES.frame, sent))
    reader = wire.frame_reader()
    bodies = [body for at in range(0, len(data), size) for body in reader.feed(data[at : at + size])]
    assert [wire.decode_frame(body) for body in bodies] == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    for read in (wire.decode_frame, wire.ASKS.decode, wire.CHATS.decode, wire.SCORES.decode):
        with contextlib.suppress(ProtocolError):
            read(data)


def test_what_is_too_large_is_refused_before_it_is_there() -> None:
    with pytest.raises(ProtocolError, match="a frame of"):
        list(wire.frame_reader().feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4)))
    uneven = wire.DrawnFrame(index=0, token_ids=b"1234", logprobs=b"", version=0)
    with pytest.raises(ProtocolError, match="other tokens than log-probabilities"):
        wire.decode_frame(wire.FRAMES.encode(uneven))
    with pytest.raises(ProtocolError, match="no vector"):
        wire.decode_frame(wire.FRAMES.encode(wire.ScoredFrame(logprobs=b"abc")))
    with pytest.raises(ProtocolError, match="no vector"):
        wire.tokens_of(b"abcde")
    half = wire.Routes(experts=b"abc", layers=2, k=1)
    with pytest.raises(ProtocolError, match="routes of a part of a token"):
        wire.decode_frame(
            wire.FRAMES.encode(wire.DrawnFrame(index=0, token_ids=b"", logprobs=b"", version=0, routes=half))
        )


def test_routes_that_no_frame_could_hold_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    told = some(wire.told_routes(routes))
    assert wire.routes_of(told).tolist() == routes.tolist()
    monkeypatch.setattr(wire, "MAX_ROUTES_BYTES", 11)
    assert wire.told_routes(routes) is None
