"""Ending a transaction: its outcome is known before anyone leaves, even if cancelled."""

import asyncio
import logging
import re
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.structs import OffsetAndMetadata

from tests.support.mesh.waiting import until
from trinity_bus.bus.client.internals import waits_for
from trinity_bus.bus.write.transactions import commit, slowness_told
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
    monkeypatch.setattr("trinity_bus.bus.write.transactions.CANCELLED_S", 0.01)

    committing = asyncio.create_task(commit(SlowClient(), 60))
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing


async def test_an_outcome_that_stays_unknown_is_told() -> None:
    with pytest.raises(BusError, match=r"commit the transaction: no answer in .* start this producer anew"):
        await commit(SlowClient(), 0.01)


async def test_what_a_slow_transaction_waits_for_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trinity_bus.bus.write.transactions.SLOW_S", 0.01)

    def said() -> str:
        return caplog.messages[-1].partition(": ")[2] if caplog.messages else ""

    async def scenario() -> None:
        manager = TransactionManager("test.coordinator", 60_000)
        accumulator = SimpleNamespace(_batches={}, _pending_batches=set())
        client = SimpleNamespace(_txn_manager=manager, _message_accumulator=accumulator)
        place = TopicPartition("test.explorer-events", 0)
        manager.set_pid_and_epoch(1, 0)
        manager.begin_transaction()
        with slowness_told(client, "a transaction of test.coordinator"):
            manager.maybe_add_partition_to_txn(place)
            accumulator._batches[place] = ["a batch"]
            manager.add_offsets_to_txn({place: 5}, "test.coordinator")
            to_do = "batches to be written (1), offsets of groups to be committed (1)"
            await until(lambda: said() == f"partitions to be added to it (1), {to_do}")
            manager.partition_added(place)
            accumulator._batches.clear()
            manager._pending_txn_offsets.clear()
            await until(lambda: said() == "nothing is left of it for the broker")
            manager.committing_transaction()
            await until(lambda: said() == "its end to be confirmed (1)")
        assert re.match(r"a transaction of test\.coordinator takes \d+ s now: ", caplog.messages[0])
        caplog.clear()
        # Longer than it would take until the next word.
        await asyncio.sleep(0.03)
        assert not caplog.messages

    with caplog.at_level(logging.WARNING):
        await scenario()


async def test_offsets_that_are_not_committed_are_what_is_waited_for() -> None:
    """Their transaction has no batch left then, and its end is not asked for yet."""
    manager = TransactionManager("test.coordinator", 60_000)
    client = SimpleNamespace(
        _txn_manager=manager, _message_accumulator=SimpleNamespace(_batches={}, _pending_batches=set())
    )
    place = TopicPartition("test.explorer-events", 0)
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    assert waits_for(client) is None
    offset = OffsetAndMetadata(5, "")
    manager.add_offsets_to_txn({place: offset}, "test.coordinator")
    manager.consumer_group_added("test.coordinator")
    waited_for = waits_for(client)
    assert waited_for is not None
    assert waits_for(client) is waited_for
    manager.offset_committed(place, offset.offset, "test.coordinator")
    assert waits_for(client) is None
    manager.committing_transaction()
    assert waits_for(client) not in (None, waited_for)
