"""What an explorer carries out, how often it says that it lives, and which announcements move it."""

import asyncio
from typing import Any, cast

import pytest

from schemas import Cancel, Dispatch, ExplorerHeartbeat, ExplorerLeft, Member, ModelVersion, SetPace, Superseded
from tests.support.fakes.announcements import announced
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.bus import Producer
from workers.explorer.executor import OrderFilter
from workers.explorer.heartbeats import Heartbeats
from workers.explorer.weights import membership, newest, supersedes

ME, LIFE = "explorer-0", "life-2"


@pytest.mark.parametrize(
    ("record", "carried_out"),
    [
        (None, False),
        (dispatch(explorer=ME, incarnation=LIFE), True),
        (dispatch(explorer="explorer-1", incarnation=LIFE), False),
        (dispatch(explorer=ME, incarnation="life-1"), False),
        (Cancel(explorer=ME, incarnation=LIFE, task_id="t", attempt=2, reason="r"), True),
        (Cancel(explorer=ME, incarnation="life-1", task_id="t", attempt=2, reason="r"), False),
        (ExplorerLeft(explorer=ME, incarnation=LIFE), False),
        (SetPace(explorer=ME, incarnation=LIFE, pace_s=2.0), True),
        (SetPace(explorer="explorer-1", incarnation=LIFE, pace_s=2.0), False),
        (SetPace(explorer=ME, incarnation="life-1", pace_s=2.0), False),
        (Superseded(service="explorer", name=ME, incarnation=LIFE, by="life-3"), True),
        (Superseded(service="explorer", name=ME, incarnation="life-1", by="life-3"), False),
        (Superseded(service="trainer", name=ME, incarnation=LIFE, by="life-3"), False),
    ],
)
def test_what_is_to_this_incarnation_alone(record: Any, carried_out: bool) -> None:
    mine = OrderFilter(ME, LIFE)
    assert (mine.handle(record) is not None) == carried_out
    assert (mine.handle(record) is not None) == (carried_out and not isinstance(record, Dispatch)), "an attempt once"


class Written:
    """Takes the place of a producer: keeps what is sent."""

    def __init__(self) -> None:
        self.beats: asyncio.Queue[ExplorerHeartbeat] = asyncio.Queue()

    async def send(self, _topic: object, _key: str, record: ExplorerHeartbeat) -> Any:
        self.beats.put_nowait(record)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_pace_is_told_at_once_and_kept_while_changes_are_told_all_the_same() -> None:
    written = Written()
    heartbeats = Heartbeats(
        cast("Producer", written),
        interval_s=0.01,
        make=lambda state: ExplorerHeartbeat(explorer="e0", incarnation="life", state=state, slots=1),
        settings={},
    )
    running = asyncio.create_task(heartbeats.run())
    assert [(await written.beats.get()).pace_s for _ in range(3)] == [0.0, 0.0, 0.0]
    heartbeats.set_pace(60.0)
    while (await written.beats.get()).pace_s != 60.0:
        pass
    heartbeats.set_state("syncing")
    told = await written.beats.get()
    assert (told.state, told.pace_s) == ("syncing", 60.0)
    heartbeats.set_pace(0.0)
    assert [(await written.beats.get()).pace_s for _ in range(3)] == [0.0, 0.0, 0.0], "as often as before"
    running.cancel()
    await asyncio.wait([running])


def version(number: int, *, model: str = "policy", epoch: int = 1, trainer: str = "t") -> ModelVersion:
    return announced(number, "a", incarnation="l", model=model, epoch=epoch, trainer_incarnation=trainer)


def test_the_last_announcement_of_the_model_moves_this_very_life_unless_it_is_a_repetition() -> None:
    assert newest([version(1), version(2), version(9, model="other"), None], "policy") == version(2)
    assert newest([version(9, model="other")], "policy") is None
    assert membership(version(1), "a", "l") == Member(explorer="a", incarnation="l", rank=1)
    assert membership(version(1), "a", "former") is membership(version(1), "b", "l") is None
    others = (version(2), version(1, epoch=2), version(1, trainer="restarted"), version(0))
    assert [supersedes(one, version(1)) for one in (version(1), *others)] == [False] + [True] * 4
