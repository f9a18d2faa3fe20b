from hypothesis import given
from hypothesis import strategies as st

from schemas import Cancel, Dispatch, ExplorerLeft, SetPace
from tests.support.fakes import mesh_records
from trinity_bus.runners.service import key_of
from workers.explorer.order_filter import OrderFilter

ME, INCARNATION = "explorer-0", "life-2"


def dispatch(task_id: str = "t", attempt: int = 1, explorer: str = ME, incarnation: str = INCARNATION) -> Dispatch:
    return mesh_records.dispatch(task_id, attempt=attempt, explorer=explorer, incarnation=incarnation)


def cancel(task_id: str = "t", attempt: int = 1, explorer: str = ME, incarnation: str = INCARNATION) -> Cancel:
    return Cancel(explorer=explorer, incarnation=incarnation, task_id=task_id, attempt=attempt, reason="r")


orders = st.builds(
    lambda make, task, attempt, explorer, incarnation: make(task, attempt, explorer, incarnation),
    st.sampled_from([dispatch, cancel]),
    st.sampled_from(["t", "u"]),
    st.integers(1, 2),
    st.sampled_from([ME, "explorer-1"]),
    st.sampled_from([INCARNATION, "life-1"]),
)


@given(st.lists(orders, max_size=40), st.data())
def test_an_attempt_starts_once_and_only_what_runs_is_cancelled(
    lane: list[Dispatch | Cancel], data: st.DataObject
) -> None:
    mine = OrderFilter(ME, INCARNATION)
    started: set[tuple[str, int]] = set()
    running: set[tuple[str, int]] = set()
    for order in lane:
        handled = mine.handle(order)
        attempt = key_of(order)
        to_me = (order.explorer, order.incarnation) == (ME, INCARNATION)
        if isinstance(order, Dispatch):
            assert (handled is order) == (to_me and attempt not in started)
            if handled is not None:
                started.add(attempt)
                running.add(attempt)
        else:
            assert (handled is order) == (to_me and attempt in running)
            if handled is not None:
                running.discard(attempt)
        ends: bool = bool(running) and data.draw(st.booleans())
        if ends:
            done = min(running)
            mine.ended(done)
            running.discard(done)


def test_other_records_and_unreadable_ones_are_passed_over() -> None:
    mine = OrderFilter(ME, INCARNATION)
    assert mine.handle(None) is None
    assert mine.handle(ExplorerLeft(explorer=ME, incarnation=INCARNATION)) is None


def test_the_pace_is_for_this_incarnation_alone() -> None:
    mine = OrderFilter(ME, INCARNATION)
    paces = [
        SetPace(explorer=e, incarnation=i, pace_s=2.0) for e in (ME, "explorer-1") for i in (INCARNATION, "life-1")
    ]
    assert [mine.paced(record) for record in paces] == [2.0, None, None, None]
    assert [mine.handle(record) for record in paces] == [None] * 4
    assert mine.paced(dispatch()) is None
