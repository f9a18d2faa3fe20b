from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Cancel, Dispatch, ExplorerLeft, SetPace, Superseded
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


@given(st.lists(orders, max_size=40))
def test_an_attempt_starts_once_and_orders_to_others_are_passed_over(lane: list[Dispatch | Cancel]) -> None:
    mine = OrderFilter(ME, INCARNATION)
    started: set[tuple[str, int]] = set()
    for order in lane:
        carried_out = (order.explorer, order.incarnation) == (ME, INCARNATION)
        if isinstance(order, Dispatch) and carried_out:
            carried_out = key_of(order) not in started
            started.add(key_of(order))
        assert (mine.handle(order) is order) == carried_out


@pytest.mark.parametrize(
    ("record", "carried_out"),
    [
        (None, False),
        (ExplorerLeft(explorer=ME, incarnation=INCARNATION), False),
        (SetPace(explorer=ME, incarnation=INCARNATION, pace_s=2.0), True),
        (SetPace(explorer="explorer-1", incarnation=INCARNATION, pace_s=2.0), False),
        (SetPace(explorer=ME, incarnation="life-1", pace_s=2.0), False),
        (Superseded(service="explorer", name=ME, incarnation=INCARNATION, by="life-3"), True),
        (Superseded(service="explorer", name=ME, incarnation="life-1", by="life-3"), False),
        (Superseded(service="trainer", name=ME, incarnation=INCARNATION, by="life-3"), False),
    ],
)
def test_what_is_to_this_incarnation_alone(record: Any, carried_out: bool) -> None:
    assert (OrderFilter(ME, INCARNATION).handle(record) is not None) == carried_out
