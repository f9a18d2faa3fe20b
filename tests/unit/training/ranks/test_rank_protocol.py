"""What ranks tell each other: no call before the one before is settled, and every loss has a name."""

import pytest

from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.rank_protocol import (
    Build,
    Call,
    Done,
    Export,
    Failed,
    Gather,
    Join,
    Leave,
    Load,
    Order,
    PendingCalls,
    RankAnswer,
    Save,
    Train,
    Turns,
    UpdateShard,
)
from trinity_bus.training.steps.token_figures import SampleFigures

FIGURES = SampleFigures(3, 1, b"ab", b"cd")
JOIN = Join("1.0", "/checkpoints", "0123456789abcdef")


@pytest.mark.parametrize(
    "call",
    [
        JOIN,
        Build(3, "127.0.0.1", 1, b"{}"),
        Load("a"),
        Train((UpdateShard(2, 7.5, 6),), 9),
        Save("a", b"{}"),
        Gather(),
        Gather(adapter=True),
        Export("b"),
        Leave(),
    ],
)
def test_orders_survive_the_wire(call: Call) -> None:
    assert protocol.ORDERS.decode(protocol.ORDERS.encode(Order(7, call))) == Order(7, call)


def test_answers_survive_the_wire() -> None:
    for answer in (
        RankAnswer(1, Done(4)),
        RankAnswer(1, Done(4, [FIGURES])),
        RankAnswer(2, Failed("no memory")),
        RankAnswer(3, Failed("x" * protocol.MAX_WHY)),
    ):
        assert protocol.ANSWERS.decode(protocol.ANSWERS.encode(answer)) == answer


def test_one_side_does_not_take_what_only_the_other_may_say() -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        protocol.ORDERS.decode(protocol.ANSWERS.encode(RankAnswer(1, Done(1))))
    with pytest.raises(ProtocolError, match="cannot be read"):
        protocol.ANSWERS.decode(protocol.ORDERS.encode(Order(1, Gather())))


def test_a_follower_takes_join_first_and_misses_nothing() -> None:
    with pytest.raises(RankError, match="the first one, and no other, is Join"):
        Turns().take(Order(1, Gather()))
    turns = Turns()
    turns.take(Order(1, JOIN))
    turns.take(Order(2, Gather()))
    with pytest.raises(RankError, match="the first one, and no other, is Join"):
        turns.take(Order(3, JOIN))
    with pytest.raises(RankError, match="order 4 came after order 2"):
        turns.take(Order(4, Gather()))


def test_a_call_is_settled_when_all_have_answered() -> None:
    roll = PendingCalls(3)
    assert roll.settled
    assert roll.call(JOIN) == 1
    assert not roll.settled
    roll.answered(2, RankAnswer(1, Done(0, [FIGURES])))
    assert roll.waiting == [1]
    assert roll.late(5.0) == "rank 1 of 3 did not answer Join within 5 s"
    with pytest.raises(RankError, match="Gather was called before Join was settled"):
        roll.call(Gather())
    roll.answered(1, RankAnswer(1, Done(0)))
    assert roll.settled
    roll.check(0)
    with pytest.raises(RankError, match="rank 1 is at step 0, rank 0 at step 1"):
        roll.check(1)
    assert roll.take_figures() == [FIGURES]
    assert roll.take_figures() == []
    assert roll.call(Gather()) == 2


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (
            lambda roll: roll.ended(1, "(process 42) was ended by SIGKILL"),
            r"rank 1 of 3 \(process 42\) was ended by SIGKILL",
        ),
        (lambda roll: roll.ended(2, "(at 10.0.0.2) is gone"), r"rank 2 of 3 \(at 10.0.0.2\) is gone"),
        (lambda roll: roll.answered(1, RankAnswer(1, Failed("no memory"))), "rank 1 of 3 failed in Join: no memory"),
        (
            lambda roll: roll.answered(1, RankAnswer(9, Done(0))),
            "rank 1 of 3 answered order 9, where order 1 was the last",
        ),
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


def test_a_second_answer_to_one_order_is_no_answer_to_the_next() -> None:
    roll = PendingCalls(2)
    roll.call(JOIN)
    roll.answered(1, RankAnswer(1, Done(0)))
    roll.answered(1, RankAnswer(1, Done(0)))
    assert roll.lost is not None


def test_the_end_of_a_rank_that_leaves_is_no_loss() -> None:
    roll = PendingCalls(2)
    roll.call(JOIN)
    roll.answered(1, RankAnswer(1, Done(0)))
    roll.call(Leave())
    roll.ended(1, "ended with status 0")
    assert roll.lost is None
    assert roll.settled
