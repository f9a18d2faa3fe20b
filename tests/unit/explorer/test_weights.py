"""The follower of announcements, on a fake log with an engine that only says how a transfer went."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas import ExplorerHeartbeat, Member, ModelVersion, WeightsSynced
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS
from tests.support.fakes.announcements import announced
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.telemetry import conventions as names
from trinity_bus.weights.errors import WeightTransferError
from workers.explorer import weights
from workers.explorer.heartbeats import Heartbeats
from workers.explorer.outcome import ExplorerIdentity
from workers.explorer.weights import ServedVersion, WeightFollower

WHO = ExplorerIdentity(explorer="explorer-0", incarnation="life", model="policy")


class FakeEngine:
    """Stands for an engine; a version without an outcome fails."""

    def __init__(self, outcomes: dict[int, SyncOutcome]) -> None:
        self._outcomes = outcomes

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        del member
        if announced.version not in self._outcomes:
            raise WeightTransferError("it broke off")
        return self._outcomes[announced.version]


class FakeHistogram:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.recorded: list[tuple[float, dict[str, Any]]] = []

    def record(self, value: float, attributes: dict[str, Any]) -> None:
        self.recorded.append((value, attributes))


def announcement(version: int) -> ModelVersion:
    return announced(version, "explorer-0", checksum="aa")


@asynccontextmanager
async def followed(
    engine: FakeEngine, served: ServedVersion, log: FakeLog
) -> AsyncIterator[tuple[Callable[[ModelVersion], Awaitable[None]], asyncio.Task[None]]]:
    """What announces a version on a log, and the task that follows what is announced there."""
    bus = FakeBus(log)

    def beat(state: Any) -> ExplorerHeartbeat:
        return ExplorerHeartbeat(
            explorer="explorer-0", incarnation="life", state=state, slots=1, model_version=served.version
        )

    async with bus.producer() as producer, bus.reader(MODEL_VERSIONS, start="beginning") as announcements:

        async def announce(version: ModelVersion) -> None:
            await (await producer.send(MODEL_VERSIONS, "policy", version))

        heartbeats = Heartbeats(producer, interval_s=60, make=beat, settings={})  # type: ignore[arg-type]  # a fake one
        follower = WeightFollower(engine, producer, WHO, served=served, heartbeats=heartbeats)  # type: ignore[arg-type]
        async with follower.beside(announcements) as following:  # type: ignore[arg-type]
            yield announce, following


async def answers_to(engine: FakeEngine, versions: list[int], served: ServedVersion) -> list[WeightsSynced]:
    """What is said about these versions, announced one after the other."""
    log = FakeLog()

    def said() -> list[WeightsSynced]:
        return [item.record for item in log.all(EXPLORER_EVENTS) if isinstance(item.record, WeightsSynced)]

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), log.grown:
            await log.grown.wait_for(condition)

    async with followed(engine, served, log) as (announce, _):
        for count, version in enumerate(versions, 1):
            await announce(announcement(version))
            await until(lambda count=count: len(said()) == count)  # type: ignore[misc]
    return said()


async def test_a_version_is_answered_for_and_its_pause_and_duration_are_measured_where_it_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, durations = FakeHistogram(), FakeHistogram()
    monkeypatch.setattr(weights, "WEIGHT_SYNC_PAUSE", pauses)
    monkeypatch.setattr(weights, "WEIGHT_SYNC_DURATION", durations)
    served = ServedVersion()
    engine = FakeEngine({2: SyncOutcome(checksum="aa", control_s=0.1, transfer_s=0.2, pause_s=0.03, verify_s=0.4)})
    failed, taken = await answers_to(engine, [1, 2], served)
    assert (failed.ok, failed.error) == (False, "WeightTransferError: it broke off")
    assert (taken.ok, taken.version, taken.checksum, served.version) == (True, 2, "aa", 2)
    assert (taken.control_s, taken.transfer_s, taken.pause_s, taken.verify_s) == (0.1, 0.2, 0.03, 0.4)
    assert pauses.recorded == [(0.03, {names.RL_MODEL: "policy"})]
    assert [attributes for _, attributes in durations.recorded] == [{names.RL_MODEL: "policy"}]


async def test_what_ends_the_following_beside_something_else_is_told_at_the_end_of_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class DeadEngine(FakeEngine):
        async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
            raise EngineDeadError("the engine's process is gone")

    async with followed(DeadEngine({}), ServedVersion(), FakeLog()) as (announce, following):
        await announce(announcement(1))
        await asyncio.wait([following], timeout=60)
        assert not caplog.records
    (line,) = caplog.records
    assert line.getMessage() == "versions were not followed to the end: the engine's process is gone"
