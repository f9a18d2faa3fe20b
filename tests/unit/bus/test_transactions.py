"""Ending a transaction: its outcome is known before anyone leaves, even if cancelled."""

import asyncio

import pytest

from trinity_bus.bus.write.outages import commit
from trinity_bus.errors import BusError


class SlowClient:
    """Stands for the client library's producer: its commit takes until ``answer`` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.committed = False

    async def commit_transaction(self) -> None:
        await self.answer.wait()
        self.committed = True


async def test_a_cancelled_commit_is_waited_for() -> None:
    client = SlowClient()
    committing = asyncio.create_task(commit(client, 60))
    for _ in range(3):
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.sleep(0)
        assert not committing.done()
    client.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert client.committed


async def test_one_who_is_told_to_stop_does_not_wait_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.bus.write.outages.CANCELLED_S", 0.01)
    committing = asyncio.create_task(commit(SlowClient(), 60))
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing


async def test_an_outcome_that_stays_unknown_is_told() -> None:
    with pytest.raises(BusError, match=r"commit the transaction: no answer in .* start this producer anew"):
        await commit(SlowClient(), 0.01)
