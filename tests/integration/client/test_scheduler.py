"""``Scheduler`` against the real coordinator on a real broker, with a fake explorer and a fake trainer."""

import asyncio

import pytest

from schemas import ExperienceGroup
from schemas.codec import decode
from schemas.topics import BATCHES, RESULTS
from tests.support.mesh.client_fleet import Fleet, fleet, held, tasks
from tests.support.mesh.mesh import Mesh
from tests.support.mesh.records import record_of
from trinity_bus.client import Scheduler

pytestmark = pytest.mark.integration


async def open_batches(fleet: Fleet) -> list[str]:
    """States of all batches."""
    async with fleet.bus.reader(BATCHES, start="beginning") as reader:
        last = {received.key: record_of(received) async for received in reader.replay(written=True)}
    return sorted(record.state.value for record in last.values())


async def test_tasks_of_both_types_come_back_with_their_payloads(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of, Scheduler(mesh_of.settings) as one, Scheduler(mesh_of.settings) as other:
        await one.schedule(tasks(3), 1)
        one.schedule(tasks(2, first=3), 1)
        one.schedule(tasks(2, batch_type="eval"), "1/held-out")
        # Under the same id, with the same task ids, at the same time.
        other.schedule(tasks(2), 1)
        statuses, payloads = await one.get_payload_results(1)
        assert [status.ok for status in statuses] == [True] * 5
        assert all(status.metrics[0]["reward"] == 1.0 for status in statuses)
        groups = [decode(payload, ExperienceGroup) for payload in payloads]
        assert [group.task_id.partition("#")[2] for group in groups] == ["t0", "t1", "t2", "t3", "t4"]
        evaluated, nothing = await one.get_payload_results("1/held-out")
        assert ([status.ok for status in evaluated], nothing) == ([True, True], [])
        assert "reward/mean@1" in evaluated[0].metrics[0]
        assert len(await other.get_statuses(1)) == 2
        # And again.
        one.schedule(tasks(1), 1)
        await one.wait_all()
        assert one.has_step(1)
        assert len((await one.drain_batch_payload_results(1))[1]) == 1
        assert not one.has_step(1)
        assert 0 < one.dynamic_timeout() <= 300
        assert one.dynamic_timeout(0.5) == 0.5
    assert set(await open_batches(mesh_of)) == {"aborted"}


async def test_what_is_not_waited_for_is_cut_off_in_the_engine_and_never_comes_back(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of, Scheduler(mesh_of.settings) as scheduler:
        scheduler.schedule([*tasks(2), *held(1)], 1)
        await mesh_of.orders("#h0")
        first = await scheduler.get_statuses(1, min_num=2, timeout=1.0, clear_timeout_tasks=False)
        while len(first) < 2:
            first += await scheduler.get_statuses(1, timeout=0.2, clear_timeout_tasks=False)
        assert scheduler.has_step(1)
        with pytest.raises(TimeoutError, match=r"^Timeout after 0\.3 seconds\. Still have [01] pending tasks and"):
            await scheduler.wait_all(timeout=0.3, clear_timeout_tasks=False)
        await mesh_of.answer("#h0")
        assert [status.ok for status in await scheduler.get_statuses(1)] == [True]

        scheduler.schedule(held(2), 2)
        await mesh_of.orders("#h0", 2)
        await mesh_of.orders("#h1")
        assert await scheduler.get_statuses(2, timeout=0.1) == []
        assert not scheduler.has_step(2)
        await mesh_of.answer("#h1")
        # An attempt that was cut off counts for nothing, also when its batch's id is used again.
        scheduler.schedule(tasks(1), 2)
        assert len(await scheduler.get_statuses(2)) == 1
        async with asyncio.timeout(60):
            while {c.task_id.partition("#")[2] for c in mesh_of.explorer.cancelled} != {"h0", "h1"}:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        assert all(cancel.restart_runner for cancel in mesh_of.explorer.cancelled)


async def test_a_batch_is_closed_once_every_result_that_is_written_has_been_read(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of, Scheduler(mesh_of.settings) as scheduler:
        scheduler.schedule(held(1), 1)
        await mesh_of.orders("#h0")
        # The coordinator's reply may be read before what it has written beside it; here something of another's is late.
        async with mesh_of.bus.producer(transactional_id="late") as late, late.transaction():
            for partition in range(RESULTS.partitions):
                await (await late.send_raw(RESULTS, "late", b"late", partition=partition))
            aborting = asyncio.create_task(scheduler.abort_batch(1))
            async with asyncio.timeout(60):
                while "aborted" not in await open_batches(mesh_of):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            # One that does not wait for it is done well within this.
            await asyncio.wait([aborting], timeout=0.5)
            assert not aborting.done()
        await aborting


async def test_a_coordinator_that_is_killed_costs_no_result(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of:
        with mesh.coordinator(explorer_timeout_s=60, group_size=1, name="coordinator-1"):
            async with Scheduler(mesh_of.settings) as scheduler:
                scheduler.schedule([*tasks(20), *held(1)], 1)
                await mesh_of.orders("#h0")
                await asyncio.to_thread(mesh_of.kill_coordinator)
                scheduler.schedule(tasks(20, first=20), 1)
                await mesh_of.answer("#h0")
                statuses = await scheduler.get_statuses(1)
                assert [status.ok for status in statuses] == [True] * 41
