import asyncio
from typing import Any, cast

import pytest

from schemas import ModelVersion, WeightsSynced
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS
from tests.support.fakes.announcements import announced
from tests.support.fakes.received import received as at_place
from trinity_bus.bus import Received, Undecodable
from workers.trainer.version_publisher import ServedVersions


def announcement(epoch: int, *explorers: str, version: int = 1, incarnation: str = "life") -> ModelVersion:
    return announced(version, *explorers, incarnation="a", epoch=epoch, trainer_incarnation=incarnation, checksum="aa")


def received(record: Any, traceparent: str | None = None) -> Received[Any]:
    topic = MODEL_VERSIONS if isinstance(record, ModelVersion) else EXPLORER_EVENTS
    return at_place(record, topic, traceparent=traceparent)


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
    """Notes whom it is told to let in, and what to keep."""

    def __init__(self) -> None:
        self.admitted: list[tuple[int, int, str | None]] = []
        self.kept: list[int] = []

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        self.admitted.append((announced.version, announced.epoch, traceparent))

    def keep(self, version: int) -> None:
        self.kept.append(version)


def served(server: FakeServer | None = None) -> ServedVersions:
    made = ServedVersions(cast("Any", server or FakeServer()), model="policy", incarnation="life")
    made.add(1, "aa")
    return made


async def test_members_of_this_lifes_announcements_are_let_in_and_the_last_version_is_kept() -> None:
    server = FakeServer()
    reader = FakeReader(
        [received(announcement(1, "good"), "trace"), received(announcement(9, "good", incarnation="former"))],
        [received(Undecodable(b"", "not_msgpack", "")), received(announcement(2, "lame"))],
        [received(announcement(3, version=2))],
    )
    serving = asyncio.create_task(served(server).serve(reader))  # type: ignore[arg-type]  # has what is used
    await reader.empty.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert server.admitted == [(1, 1, "trace"), (1, 2, None), (2, 3, None)]
    assert server.kept == [1, 1, 2]


def synced(**changes: Any) -> WeightsSynced:
    of: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "a", "model": "policy"}
    return WeightsSynced(**{**of, "version": 1, "epoch": 1, "ok": True, "checksum": "aa", **changes})


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        pytest.param(synced(), True, id="right"),
        pytest.param(synced(ok=False, checksum="", error="LinkError"), True, id="failed, and says so"),
        pytest.param(synced(version=7, checksum="bb"), True, id="of a version that this incarnation never had"),
        pytest.param(synced(model="other", checksum="bb"), True, id="of another model"),
        pytest.param(synced(checksum="bb"), False, id="other bytes"),
        pytest.param(synced(checksum=""), False, id="none"),
    ],
)
def test_wrong_bytes_are_reported_and_counted(
    answer: WeightsSynced, *, is_right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = served()
    assert made.compare(answer) is is_right
    assert made.mismatches == int(not is_right)
    assert ("explorer-0 received version 1" in caplog.text) is not is_right


def test_old_checksums_are_forgotten() -> None:
    made = served()
    for version in range(2, 40):
        made.add(version, "aa")
    assert made.compare(synced(checksum="bb"))
    assert not made.compare(synced(version=39, checksum="bb"))
