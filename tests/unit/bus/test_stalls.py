"""What keeps records from a reader is found, told once, and over when it is over."""

from trinity_bus.bus.read.offsets import HELD_S, Stalls, Standing

FINE = [("tasks", 8, 8)]


def standing(position: int, stable_end: int | None, end: int | None) -> list[Standing]:
    return [Standing("tasks", 3, position, stable_end, end)]


def test_a_transaction_that_stays_open_holds_its_partition_and_is_told_once() -> None:
    stalls = Stalls()
    assert not stalls.look(0, standing(7, 7, 9), FINE), "it may end in a moment"
    assert stalls.look(HELD_S, standing(7, 7, 12), FINE)
    assert stalls.look(HELD_S + 1, standing(7, 7, 13), FINE)
    (line,) = stalls.news()
    assert line.startswith("tasks/3: records from 7 on wait for a transaction")
    assert stalls.news() == []
    assert not stalls.look(HELD_S + 2, standing(7, 13, 13), FINE)
    assert not stalls.look(HELD_S + 3, standing(13, 13, 14), FINE), "another one has just begun"


def test_what_is_not_read_yet_or_not_known_and_transactions_that_end_hold_nothing() -> None:
    stalls = Stalls()
    for second in range(20):
        for one in (standing(second, second, second + 1), standing(3, 7, 9), standing(3, None, None)):
            assert not stalls.look(second, one, FINE)


def test_partitions_that_nobody_reads_are_told_once() -> None:
    stalls = Stalls()
    for second in range(3):
        assert stalls.look(second, [], [("tasks", 10, 8)])
    (line,) = stalls.news()
    assert line.startswith("tasks has 10 partitions and needs exactly 8: nobody reads what is in the others")
