import asyncio
from typing import Any, cast

from schemas import ExplorerHeartbeat
from schemas.event import ExplorerState
from trinity_bus.bus import Producer
from workers.explorer.heartbeats import Heartbeats


class Written:
    """Takes the place of a producer: keeps what is sent."""

    def __init__(self) -> None:
        self.beats: asyncio.Queue[ExplorerHeartbeat] = asyncio.Queue()

    async def send(self, _topic: object, _key: str, record: ExplorerHeartbeat) -> Any:
        self.beats.put_nowait(record)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def beat(state: ExplorerState) -> ExplorerHeartbeat:
    return ExplorerHeartbeat(explorer="e0", incarnation="life", state=state, slots=1)


async def test_a_pace_is_told_at_once_and_kept_while_changes_are_told_all_the_same() -> None:
    written = Written()
    heartbeats = Heartbeats(cast("Producer", written), interval_s=0.01, make=beat, settings={})
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
