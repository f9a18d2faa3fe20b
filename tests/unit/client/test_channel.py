"""Commands and replies, over a fake log in memory with a fake coordinator."""

import asyncio
from typing import Any

import pytest

from schemas import CommandReply, FinalizeBatch, SubmitBatch
from schemas.topics import REPLIES
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.client import CommandChannel
from trinity_bus.errors import BusError, NoCoordinatorError


def channel(bus: Any, **options: Any) -> CommandChannel:
    return CommandChannel(bus, bus.producer(), name="test", **options)


async def test_many_commands_are_under_way_at_once_and_each_gets_its_own_reply() -> None:
    bus = FakeBus(FakeLog())
    async with FakeCoordinator(bus).running(), channel(bus) as first, channel(bus) as second:
        asked = [client.submit(f"b{n}", expected_task_count=1) for n in range(50) for client in (first, second)]
        replies = await asyncio.gather(*asked)
        for n in range(50):
            pair = replies[2 * n : 2 * n + 2]
            assert [reply.client for reply in pair] == [first.client, second.client]
            assert {reply.batch_id for reply in pair} == {f"b{n}"}
            assert sorted(str(reply.error) for reply in pair) == ["None", "already_active"]


async def test_a_command_without_a_reply_is_sent_again_under_its_id_and_carried_out_once() -> None:
    bus = FakeBus(FakeLog())
    coordinator = FakeCoordinator(bus)
    coordinator.deaf = True
    async with coordinator.running(), channel(bus, again_s=0.05) as client:
        asking = asyncio.create_task(client.submit("b", expected_task_count=1))
        await coordinator.until(lambda: len(coordinator.commands) >= 3)
        coordinator.deaf = False
        assert (await asking).error is None
        assert len({command.command_id for command in coordinator.commands}) == 1


async def test_a_broker_that_is_away_for_a_while_costs_nothing() -> None:
    log = FakeLog()
    bus = FakeBus(log)
    async with FakeCoordinator(bus).running() as coordinator, channel(bus, again_s=0.05) as client:
        log.refuse_sends = 2
        reply = await client.submit("b", expected_task_count=1)
        assert reply.error is None
        # More than once where the reply was slow, but always the same.
        assert {(type(command), command.command_id) for command in coordinator.commands} == {
            (SubmitBatch, coordinator.commands[0].command_id)
        }


async def test_replies_are_read_on_after_a_reader_has_broken() -> None:
    log = FakeLog()
    bus = FakeBus(log)
    coordinator = FakeCoordinator(bus)
    async with channel(bus, again_s=0.05) as client:
        asking = asyncio.create_task(client.submit("b", expected_task_count=1))
        await asyncio.sleep(0)
        log.refuse_reads = 1
        async with log.grown:
            log.grown.notify_all()
        await asyncio.sleep(0)
        await log.reads_refused.wait()
        async with coordinator.running():
            assert (await asking).error is None


async def test_silence_is_an_error_that_names_the_fix() -> None:
    bus = FakeBus(FakeLog())
    async with channel(bus, again_s=0.02, silence_s=0.1) as client:
        with pytest.raises(NoCoordinatorError, match="trinity-bus run coordinator") as told:
            await client.submit("b", expected_task_count=1)
        assert "namespace 'fake'" in str(told.value)
        assert "asked about batch 'b'" in str(told.value)


async def test_a_long_wait_is_no_silence_while_a_coordinator_answers_and_one_when_it_dies() -> None:
    bus = FakeBus(FakeLog())
    async with channel(bus, again_s=0.05, silence_s=1.0) as client:
        async with FakeCoordinator(bus).running() as coordinator:
            await client.submit("b", expected_task_count=1)
            waiting = asyncio.create_task(client.finalize("b"))
            # Far longer than the silence that is borne.
            await coordinator.until(lambda: len(coordinator.commands) >= 30)
            assert not waiting.done()
            finalizers = [c for c in coordinator.commands if isinstance(c, FinalizeBatch)]
            assert len({c.command_id for c in finalizers}) == 1
        with pytest.raises(NoCoordinatorError):
            await waiting


async def test_replies_to_others_and_to_commands_that_nobody_waits_for_are_passed_over() -> None:
    bus = FakeBus(FakeLog())
    producer = bus.producer()
    async with FakeCoordinator(bus).running(), channel(bus) as client:
        for name in ("somebody", client.client):
            reply = CommandReply(client=name, command_id=f"{client.client}/77", batch_id="b")
            await producer.send(REPLIES, name, reply)
        await producer.send_raw(REPLIES, "x", b"not a reply")
        assert (await client.submit("b", expected_task_count=1)).error is None


async def test_a_caller_that_waits_when_the_channel_closes_is_told() -> None:
    bus = FakeBus(FakeLog())
    async with FakeCoordinator(bus).running():
        async with channel(bus) as client:
            await client.submit("b", expected_task_count=1)
            waiting = asyncio.create_task(client.finalize("b"))
            await asyncio.sleep(0)
        with pytest.raises(BusError, match="shut down"):
            await waiting
