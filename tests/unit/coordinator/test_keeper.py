"""How often the coordinator asks where the log of experiences lies, when it listens for what retention needs, and how
much of a topic that is.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS, EXPERIENCES
from trinity_bus.bus import Bus, Received
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine
from trinity_bus.errors import BusError
from trinity_bus.training.checkpoint.listing import oldest_need
from workers.coordinator.log_facts import BEGIN_S, ExperienceBounds
from workers.coordinator.retention import Commits, Keeper, needed_share

READ = {("batches", 0): 3, ("version-history", 0): 7}
MACHINE = partial(CoordinatorMachine, CoordinatorSettings())


class FakeLog:
    """FAKE: a bus whose log grows by one record whenever its end is asked for, and has nothing to read.

    Of a topic, somebody has made the budget larger; of another, taken the limit away.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.starts: list[Mapping[tuple[str, int], int]] = []
        self.readers = 0
        self.positions = READ

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        self.asked.append(f"begin of {topic.name}")
        return dict.fromkeys(range(topic.partitions), len(self.asked))

    async def written_ends(self, topic: Topic) -> dict[int, int]:
        self.asked.append(f"end of {topic.name}")
        return dict.fromkeys(range(topic.partitions), 100 + len(self.asked))

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        return await self.written_ends(topic)

    async def offsets_from(self, topic: Topic, time_ms: int) -> dict[int, int]:
        return dict.fromkeys(range(topic.partitions), 0)

    async def sizes(self, topics: object) -> dict[tuple[str, int], int]:
        return {("demonstrations", 0): 6 << 30, ("preferences", 0): 6 << 30, ("tasks", 1): 4 << 30}

    async def budgets(self, topics: object) -> dict[str, int]:
        return {"demonstrations": DEMONSTRATIONS.retention_bytes, "preferences": -1, "tasks": 16 << 30}

    @asynccontextmanager
    async def reader(self, *topics: Topic, start: Mapping[tuple[str, int], int]) -> AsyncIterator["FakeLog"]:
        self.starts.append(start)
        self.readers += 1
        yield self
        self.readers -= 1

    async def replay(self) -> AsyncIterator[Received[Any]]:
        nothing: tuple[Received[Any], ...] = ()
        for received in nothing:
            yield received


async def test_the_end_is_asked_for_each_time_and_the_beginning_once_in_a_while() -> None:
    log, now = FakeLog(), 100.0
    bounds = ExperienceBounds(cast("Bus", log), lambda: now)

    first = await bounds.now()
    now += BEGIN_S / 2
    second = await bounds.now()
    assert second[0] == first[0]
    assert second[1][0] > first[1][0]
    begin, end = f"begin of {EXPERIENCES.name}", f"end of {EXPERIENCES.name}"
    assert log.asked == [begin, end, end]
    now += BEGIN_S / 2
    assert (await bounds.now())[0] != first[0]
    assert log.asked[3:] == [begin, end]


async def test_a_question_that_nobody_waits_for_any_more_ends_and_one_that_fails_tells_who_waits() -> None:
    class Away(FakeLog):
        async def written_ends(self, topic: Topic) -> dict[int, int]:
            raise BusError("no broker")

    with pytest.raises(BusError, match="no broker"):
        async with ExperienceBounds(cast("Bus", Away()), lambda: 0.0).asked() as asked:
            await asked
    with pytest.raises(ValueError, match="something else"):
        async with ExperienceBounds(cast("Bus", FakeLog()), lambda: 0.0).asked() as asked:
            raise ValueError("something else")
    assert asked.cancelled()


async def test_nobody_listens_between_two_looks_at_what_may_be_deleted() -> None:
    log, commits, waits = FakeLog(), Commits({}), asyncio.Event()
    open_while_waiting: list[int] = []

    class Watched(Keeper):
        async def _round(self) -> None:
            open_while_waiting.append(log.readers)
            for _ in range(2):
                asyncio.get_running_loop().call_soon(partial(commits.made, {}, 0))
            await super()._round()
            if len(log.starts) > 1:
                waits.set()
                await asyncio.Event().wait()

    keeper = Watched(cast("Bus", log), MACHINE, commits, every_s=0.0, keep_s=None)
    async with asyncio.timeout(30), keeper.working():
        await waits.wait()
    assert log.starts == [{}, READ], "it goes on where it has stopped"
    assert open_while_waiting == [0, 0]


async def test_what_nobody_deletes_is_weighed_too_by_the_budgets_that_topics_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, float] = {}
    monkeypatch.setattr(
        "workers.coordinator.observations.BUDGET_USED.set",
        lambda share, of: told.update({next(iter(of.values())): share}),
    )
    await Keeper(cast("Bus", FakeLog()), MACHINE, Commits({}), every_s=1.0, keep_s=None).weigh()
    assert {name: share for name, share in told.items() if share} == {"demonstrations": 0.75, "tasks": 0.25}
    assert told["preferences"] == 0.0


@pytest.mark.parametrize(
    ("begin", "needed", "end", "share"),
    [
        (0, 0, 0, 0.0), (0, 0, 10, 1.0), (0, 5, 10, 0.5), (5, 0, 10, 1.0), (0, 10, 10, 0.0), (0, 99, 10, 0.0),
        (7, 7, 7, 0),
    ],
)  # fmt: skip
def test_the_share_that_is_needed(begin: int, needed: int, end: int, share: float) -> None:
    assert needed_share(begin, needed, end) == share


def test_the_oldest_checkpoint_says_what_is_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert oldest_need(tmp_path / "none") == oldest_need(tmp_path) == 0
    for step, offset in ((7, 70), (8, 80)):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "progress.json").write_text(f'{{"progress": {{"batches_offset": {offset}}}, "later": 1}}')
    assert oldest_need(tmp_path) == 70
    (tmp_path / "step-00000009").mkdir()
    assert oldest_need(tmp_path) == 70, "it has gone meanwhile"
    (tmp_path / "step-00000009" / "progress.json").write_text("{")
    assert oldest_need(tmp_path) == 0
    assert "nothing is deleted from the log that it may need" in caplog.text
