import asyncio
import logging
from typing import Any

import pytest

from schemas import ModelVersion, WeightsSynced
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS
from tests.support.fakes.announcements import announced
from tests.support.mesh.waiting import until
from trinity_bus.bus import Received, Undecodable
from workers.trainer.publication import Publication, newest_for_each_member


def announcement(epoch: int, *explorers: str, version: int = 1, incarnation: str = "life") -> ModelVersion:
    return announced(version, *explorers, incarnation="a", epoch=epoch, trainer_incarnation=incarnation, checksum="aa")


def received(record: Any, traceparent: str | None = None) -> Received[Any]:
    return Received(
        record=record,
        topic=MODEL_VERSIONS if isinstance(record, ModelVersion) else EXPLORER_EVENTS,
        partition=0,
        offset=0,
        key=None,
        raw=b"",
        headers=(),
        traceparent=traceparent,
        timestamp_ms=0,
    )


class FakeReader:
    """Gives its batches, then waits for ever, as a quiet topic does; ``empty`` is set when nothing is left."""

    def __init__(self, *batches: list[Received[Any]]) -> None:
        self._batches = list(batches)
        self.empty = asyncio.Event()

    async def batch(self, timeout_s: float) -> list[Received[Any]]:
        del timeout_s
        if self._batches:
            return self._batches.pop(0)
        self.empty.set()
        await asyncio.Event().wait()
        return []


class FakeServer:
    """Notes what it is asked to send; fails for one explorer."""

    def __init__(self) -> None:
        self.served: list[tuple[int, int, str | None]] = []
        self.kept: list[int] = []

    def admit(self, announced: ModelVersion) -> None:
        pass

    def keep(self, version: int) -> None:
        self.kept.append(version)

    def serve(self, announced: ModelVersion, traceparent: str | None = None) -> dict[str, str | None]:
        self.served.append((announced.version, announced.epoch, traceparent))
        return {m.explorer: "LinkError: gone" if m.explorer == "lame" else None for m in announced.members}


def publication(server: FakeServer | None = None) -> Publication:
    made = Publication(server or FakeServer(), model="policy", incarnation="life")
    made.published(1, "aa")
    return made


async def test_only_announcements_of_this_life_are_served(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[tuple[int, int, str | None]]:
        server = FakeServer()
        reader = FakeReader(
            [received(announcement(1, "good"), "trace"), received(announcement(9, "good", incarnation="former"))],
            [received(Undecodable(b"", "not_msgpack", "")), received(announcement(2, "lame"))],
            [received(announcement(3, version=2))],
        )
        serving = asyncio.create_task(publication(server).serve(reader))  # type: ignore[arg-type]  # has what is used
        await reader.empty.wait()
        await until(lambda: len(server.served) == 2 and "not sent to lame" in caplog.text)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        return sorted(server.served)

    with caplog.at_level(logging.WARNING):
        assert await scenario() == [(1, 1, "trace"), (1, 2, None)]
    assert "version 1, epoch 2: not sent to lame: LinkError: gone" in caplog.text


def test_a_later_announcement_takes_the_place_of_an_earlier_one_for_the_same_members() -> None:
    first, second, third = announcement(1, "a", "b"), announcement(2, "a"), announcement(3, "a", "c")
    together = [(first, None), (second, None), (third, None)]
    assert [version.epoch for version, _ in newest_for_each_member(together)] == [1, 3]
    assert [version.epoch for version, _ in newest_for_each_member(together[:2])] == [1, 2]
    assert newest_for_each_member([(announcement(4), None)]) == []


def synced(**changes: Any) -> WeightsSynced:
    values: dict[str, Any] = {
        "explorer": "explorer-0",
        "incarnation": "a",
        "model": "policy",
        "version": 1,
        "epoch": 1,
        "ok": True,
        "checksum": "aa",
    }
    return WeightsSynced(**{**values, **changes})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(synced(), id="right"),
        pytest.param(synced(ok=False, checksum="", error="LinkError"), id="failed, and says so"),
        pytest.param(synced(version=7, checksum="bb"), id="of a version that this incarnation never had"),
        pytest.param(synced(model="other", checksum="bb"), id="of another model"),
    ],
)
def test_answers_in_order(answer: WeightsSynced, caplog: pytest.LogCaptureFixture) -> None:
    made = publication()
    assert made.compare(answer)
    assert made.mismatches == 0
    assert caplog.text == ""


@pytest.mark.parametrize("checksum", ["bb", ""])
def test_wrong_bytes_are_reported_and_counted(checksum: str, caplog: pytest.LogCaptureFixture) -> None:
    made = publication()
    assert not made.compare(synced(checksum=checksum))
    assert made.mismatches == 1
    assert "explorer-0 received version 1" in caplog.text


def test_old_checksums_are_forgotten() -> None:
    made = publication()
    for version in range(2, 40):
        made.published(version, "aa")
    assert made.compare(synced(checksum="bb"))
    assert not made.compare(synced(version=39, checksum="bb"))
