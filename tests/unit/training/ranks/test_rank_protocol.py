"""What ranks tell each other: no call before the one before is settled, and every loss has a name."""

import pytest

from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.rank_protocol import (
    Build,
    Call,
    Done,
    Failed,
    Gather,
    Join,
    Leave,
    Load,
    PendingCalls,
    Save,
    Train,
    UpdateShard,
)
from trinity_bus.training.steps.token_figures import SampleFigures

FIGURES = SampleFigures(3, 1, b"ab", b"cd")
JOIN = Join("1.0", "/checkpoints", "0123456789abcdef")


CALLS: list[Call] = [
    *(JOIN, Build(3, "127.0.0.1", 1, b"{}"), Load("a"), Train((UpdateShard(2, 7.5, 6),), 9), Save("a", b"{}")),
    *(Gather(), Gather(adapter=True), Leave()),
]


def test_what_is_said_survives_the_wire() -> None:
    for call in CALLS:
        assert protocol.CALLS.decode(protocol.CALLS.encode(call)) == call
    for answer in (Done(4), Done(4, [FIGURES]), Failed("no memory"), Failed("x" * protocol.MAX_WHY)):
        assert protocol.ANSWERS.decode(protocol.ANSWERS.encode(answer)) == answer


def test_a_call_is_settled_when_all_have_answered() -> None:
    roll = PendingCalls(3)
    assert roll.waiting == []
    roll.call(JOIN)
    roll.answered(2, Done(0, [FIGURES]))
    assert roll.waiting == [1]
    assert roll.late(5.0) == "rank 1 of 3 did not answer Join within 5 s"
    with pytest.raises(RankError, match="Gather was called before Join was settled"):
        roll.call(Gather())
    roll.answered(1, Done(0))
    assert roll.waiting == []
    roll.check(0)
    with pytest.raises(RankError, match="rank 1 is at step 0, rank 0 at step 1"):
        roll.check(1)
    assert roll.take_figures() == [FIGURES]
    assert roll.take_figures() == []
    roll.call(Gather())
    assert roll.waiting == [1, 2]


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (
            lambda roll: roll.ended(1, "(process 42) was ended by SIGKILL"),
            r"rank 1 of 3 \(process 42\) was ended by SIGKILL",
        ),
        (lambda roll: roll.ended(2, "(at 10.0.0.2) is gone"), r"rank 2 of 3 \(at 10.0.0.2\) is gone"),
        (lambda roll: roll.answered(1, Failed("no memory")), "rank 1 of 3 failed in Join: no memory"),
        (lambda roll: roll.answered(3, Done(0)), "rank 3 of 3 answered what it was not asked"),
        (lambda roll: [roll.answered(1, Done(0)) for _ in range(2)], "rank 1 of 3 answered what it was not asked"),
        (lambda roll: roll.spoke_nonsense(2, "bad"), r"rank 2 of 3 sent what cannot be read \(bad\)"),
    ],
)
def test_a_lost_rank_is_named_and_ends_all_calls(happens, reason: str) -> None:  # type: ignore[no-untyped-def]  # a table
    roll = PendingCalls(3)
    roll.call(JOIN)
    happens(roll)
    roll.ended(1, "ended")  # what comes after does not hide the first
    with pytest.raises(RankError, match=reason):
        roll.call(Gather())


def test_the_end_of_a_rank_that_leaves_is_no_loss() -> None:
    roll = PendingCalls(2)
    roll.call(Leave())
    roll.ended(1, "ended with status 0")
    assert roll.lost is None
    assert roll.waiting == []
