from typing import Any, cast

import msgpack
import numpy as np
import pytest

from schemas import Position, TokenFigures
from schemas.codec import DecodeError, decode, encode
from schemas.experience import MAX_SAMPLES


def halves(*numbers: float) -> bytes:
    return np.array(numbers, "<f2").tobytes()


SOUND = TokenFigures(
    trainer="trainer-0",
    run="r",
    step=3,
    task_id="t",
    position=Position(partition=0, offset=7),
    samples=[1, 4],
    lengths=[2, 1],
    updates_before=[0, 3],
    gaps=halves(0.5, -0.25, 1.0),
    entropies=halves(0.0, 1.0, 2.0),
)


def test_each_sample_has_its_own() -> None:
    figures = decode(encode(SOUND), TokenFigures)
    first, last = cast("Any", (figures.of(1), figures.of(4)))
    assert ([c.tolist() for c in first[:2]], first[2]) == ([[0.5, -0.25], [0.0, 1.0]], 0)
    assert ([c.tolist() for c in last[:2]], last[2]) == ([[1.0], [2.0]], 3)
    assert figures.of(0) is None


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("lengths", [2, 2], "a number of two bytes for each token"),
        ("lengths", [2**62, 1], "a number of two bytes for each token"),
        ("lengths", [3], "an entry for each sample"),
        ("lengths", [4, -1], "lengths"),
        ("updates_before", [0, 0, 0], "an entry for each sample"),
        ("samples", [4, 1], "ascend"),
        ("samples", [1, 1], "ascend"),
        ("samples", [1, MAX_SAMPLES], "samples"),
        ("samples", [], "samples"),
        ("gaps", b"", "a number of two bytes for each token"),
        ("gaps", halves(0, 0, 0)[:-1], "a number of two bytes for each token"),
        ("gaps", halves(0, float("nan"), 0), "finite"),
        ("gaps", halves(0, float("inf"), 0), "finite"),
        ("entropies", halves(0, 0, float("nan")), "finite"),
        ("entropies", halves(0, 0, -1), "not negative"),
        ("entropies", "AAAAAAAA", "entropies"),
        ("step", 0, "step"),
    ],
)
def test_what_contradicts_itself_is_a_bad_record(field: str, value: Any, why: str) -> None:
    wire = {**msgpack.unpackb(encode(SOUND)), field: value}
    with pytest.raises(DecodeError, match=why):
        decode(msgpack.packb(wire), TokenFigures)
