"""The bookkeeping of reading by position, driven through made-up logs with holes."""

from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.bus.read.positions import JUMP_BYTES, Cursor


@given(
    visible=st.sets(st.integers(0, 60), min_size=1),
    wanted=st.sets(st.integers(0, 60), min_size=1),
    size=st.sampled_from([10, JUMP_BYTES // 4, JUMP_BYTES]),
)
def test_everything_wanted_is_found_or_reported_missing(visible: set[int], wanted: set[int], size: int) -> None:
    cursor = Cursor(sorted(wanted))
    found: list[int] = []
    missed: int | None = None
    position, reads = cursor.next, 0
    while not cursor.done and missed is None:
        # A fetch brings two visible records, or moves over a stretch that shows none.
        batch = sorted(offset for offset in visible if offset >= position)[:2]
        found += [offset for offset in batch if cursor.take(offset, size)]
        position = batch[-1] + 1 if batch else 61
        reads += 1
        missed = cursor.missed(position)
        if missed is None:
            position = cursor.jump(position) or position
        assert reads <= 62, "it comes to an end"
    if wanted <= visible:
        assert missed is None
        assert found == sorted(wanted)
    else:
        assert missed == min(wanted - visible)
        assert found == sorted(offset for offset in wanted if offset < missed)


def test_only_gaps_that_cost_more_than_a_request_are_jumped() -> None:
    cursor = Cursor([0, 10, 5000])
    assert cursor.jump(0) is None
    assert cursor.take(0, 1000)
    assert cursor.jump(1) is None, "nine records of a kilobyte are in the fetch anyway"
    assert not cursor.take(1, 1000)
    assert cursor.take(10, 1000)
    assert cursor.jump(11) == 5000
    assert cursor.take(5000, 1000)
    assert cursor.done
    assert cursor.missed(6000) is None
    assert cursor.jump(6000) is None
