"""Which partition takes a record of a topic in which any will do."""

from collections import Counter

from schemas.topics import TOPICS
from trinity_bus.bus.partitioning import MOMENT_BYTES, MOMENT_S, SETTLE_S, StickyPartitions


def test_what_comes_within_a_moment_goes_together_and_the_next_moment_elsewhere() -> None:
    sticky = StickyPartitions(8, first=3)
    first = {sticky.place(100, 1.0 + MOMENT_S * share, 8) for share in (0.0, 0.5, 0.9)}
    second = sticky.place(100, 1.0 + MOMENT_S, 8)
    assert len(first) == 1
    assert second not in first


def test_all_partitions_get_the_same() -> None:
    sticky = StickyPartitions(8, first=5)
    counts = Counter(sticky.place(100, moment * MOMENT_S * 1.01, 8) for moment in range(800))
    assert counts == dict.fromkeys(range(8), 100)


def test_large_records_of_one_moment_do_not_wait_for_each_other() -> None:
    sticky = StickyPartitions(4, first=0)
    assert len({sticky.place(MOMENT_BYTES, 1.0, 4) for _ in range(4)}) == 4


def test_producers_begin_at_different_partitions() -> None:
    assert {StickyPartitions(8, first).place(1, 0.0, 8) for first in range(8)} == set(range(8))


def test_only_topics_whose_order_nobody_depends_on_are_written_so() -> None:
    assert {topic.name for topic in TOPICS if topic.any_partition} == {"experiences", "results"}


def test_partitions_that_are_added_are_used_when_every_broker_knows_them() -> None:
    sticky = StickyPartitions(2, first=0)
    before = {sticky.place(1, now / 10, 4) for now in range(round(SETTLE_S * 10))}
    assert before == {0, 1}
    assert {sticky.place(1, SETTLE_S + now / 10, 4) for now in range(8)} == {0, 1, 2, 3}
    # None is ever taken away: a broker that lags behind says less for a moment.
    assert {sticky.place(1, SETTLE_S + 1 + now / 10, 2) for now in range(8)} == {0, 1, 2, 3}
