"""How long a producer waits is told once, and is a reason not to be ready."""

from types import SimpleNamespace

from aiokafka import TopicPartition
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.structs import OffsetAndMetadata

from trinity_bus.bus.client.internals import waits_for
from trinity_bus.bus.write.outages import TOLD_S, WriteWait, still_to_do

LOOKS = round(TOLD_S)


def test_the_same_thing_that_waits_for_long_is_told_once_and_so_is_its_end() -> None:
    wait, batch = WriteWait("explorer-0", 60.0), object()
    assert [wait.look(batch, "1 batch") for _ in range(LOOKS)] == [None] * LOOKS
    assert wait.reason is None
    assert wait.look(batch, "1 batch") == (
        "producer explorer-0: a record has waited for 10 s (1 batch); do as many brokers run as must have it "
        "(min.insync.replicas)? It waits for up to 60 s"
    )
    assert [wait.look(batch, "1 batch") for _ in range(5)] == [None] * 5
    assert "15 s" in (wait.reason or "")
    assert not wait.is_over
    assert wait.look(None, "") == "producer explorer-0: what waited is durable, after 15 s"
    assert (wait.reason, wait.look(None, "")) == (None, None)


def test_a_producer_that_writes_one_thing_after_the_other_does_not_wait() -> None:
    wait = WriteWait("explorer-0", 60.0)
    assert {wait.look(thing, "") for thing in [object() for _ in range(100)]} == {None}
    assert wait.seconds == 0


def test_what_waits_for_as_long_as_it_may_is_over() -> None:
    wait, batch = WriteWait("explorer-0", 3.0), object()
    for _ in range(3):
        wait.look(batch, "")
        assert not wait.is_over
    wait.look(batch, "")
    assert wait.is_over


async def test_what_a_transaction_waits_for_is_told_in_the_order_in_which_it_is_done() -> None:
    manager = TransactionManager("test.coordinator", 60_000)
    accumulator = SimpleNamespace(_batches={}, _pending_batches=set())
    client = SimpleNamespace(_txn_manager=manager, _message_accumulator=accumulator)
    place = TopicPartition("test.explorer-events", 0)
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    assert (waits_for(client), still_to_do(client)) == (None, "nothing left to be done")
    manager.maybe_add_partition_to_txn(place)
    accumulator._batches[place] = [SimpleNamespace(_ctime=0.0)]
    manager.add_offsets_to_txn({place: OffsetAndMetadata(5, "")}, "test.coordinator")
    left = "batches to be written (1), offsets of groups to be committed (1)"
    assert still_to_do(client) == f"partitions to be added to a transaction (1), {left}"
    manager.partition_added(place)
    accumulator._batches.clear()
    # Offsets that are not committed are what is waited for: there is no batch left, and its end is not asked for yet.
    manager.consumer_group_added("test.coordinator")
    waited_for = waits_for(client)
    assert waited_for is not None
    assert waits_for(client) is waited_for
    manager.offset_committed(place, 5, "test.coordinator")
    assert waits_for(client) is None
    manager.committing_transaction()
    assert waits_for(client) not in (None, waited_for)
    assert still_to_do(client) == "the end of a transaction to be confirmed (1)"
