"""What goes between gateways and explorers, as bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.gateway import wire

drawn = st.builds(
    lambda tokens, **fields: wire.DrawnFrame(
        token_ids=wire.token_bytes(tokens), logprobs=wire.logprob_bytes([-0.5] * len(tokens)), **fields
    ),
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    index=st.integers(0, 9),
    version=st.integers(-1, 5),
    finish_reason=st.none() | st.just("stop"),
    versions=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
)
frames = st.lists(drawn | st.builds(wire.FailedFrame, reason=st.text(max_size=20)), max_size=8)


@given(frames, st.integers(1, 50))
def test_frames_arrive_in_whatever_pieces_they_come(sent: list[wire.Frame], size: int) -> None:
    data = b"".join(map(wire.encode_frame, sent))
    reader = wire.FrameFeed()
    assert [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size])] == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    with contextlib.suppress(wire.AskError):
        list(wire.FrameFeed().feed(data))
    with contextlib.suppress(wire.AskError):
        wire.decode_ask(data)


def test_what_is_too_large_is_refused_before_it_is_there() -> None:
    with pytest.raises(wire.AskError, match="a frame of"):
        list(wire.FrameFeed().feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
    uneven = wire.DrawnFrame(index=0, token_ids=b"1234", logprobs=b"", version=0)
    with pytest.raises(wire.AskError, match="other tokens than log-probabilities"):
        list(wire.FrameFeed().feed(wire.encode_frame(uneven)))
