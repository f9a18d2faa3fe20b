"""``RolloutCoordinator`` against the real coordinator on a real broker, with a fake explorer and a fake trainer."""

import asyncio
from typing import Any

import pytest

from schemas import BatchRecord, ExperienceGroup
from schemas.codec import encode
from schemas.topics import BATCHES, EXPERIENCES
from tests.support.fakes.experiences import make_group
from tests.support.mesh.client_fleet import Fleet, fleet, held, tasks
from tests.support.mesh.mesh import Mesh
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.client import RolloutCoordinator, Scheduler

pytestmark = pytest.mark.integration


async def batches(fleet: Fleet) -> dict[str, BatchRecord]:
    """The last record of each batch."""
    async with fleet.bus.reader(BATCHES, start="beginning") as reader:
        return {received.key or "": record_of(received) async for received in reader.replay()}


async def test_every_method_with_several_clients_at_once(mesh: Mesh) -> None:
    async with (
        fleet(mesh) as mesh_of,
        RolloutCoordinator(mesh_of.settings) as one,
        RolloutCoordinator.get_actor(mesh_of.settings) as other,
    ):
        await one.submit_batch(batch_id=1, tasks=tasks(4), batch_type="train")
        await other.submit_batch(batch_id="1/held-out", tasks=tasks(2), batch_type="eval")
        waiting = [client.finalize_train_batch(1) for client in (one, other, one)]
        results: list[dict[str, Any]] = await asyncio.gather(*waiting)
        assert results[0] == results[1] == results[2]
        assert set(results[0]) == {"batch_id", "batch_type", "finished_task_count", "metrics"}
        assert (results[0]["batch_id"], results[0]["batch_type"]) == (1, "train")
        assert results[0]["finished_task_count"] == 4
        assert results[0]["metrics"]["rollout/reward/mean"] == 1.0
        assert results[0]["metrics"]["rollout/finished_task_count"] == 4.0
        evaluated = await one.finalize_eval_batch("1/held-out")
        assert (evaluated["batch_id"], evaluated["finished_task_count"]) == ("1/held-out", 2)
        assert evaluated["metrics"]["eval/held-out/reward/mean@1"] == 1.0
        # What has ended is remembered, for whoever asks late.
        assert await other.finalize_train_batch(1) == results[0]

        await one.submit_batch(batch_id="empty", tasks=[], batch_type="train")
        nothing = await other.finalize_train_batch("empty")
        assert (nothing["finished_task_count"], nothing["metrics"]["rollout/finished_task_count"]) == (0, 0.0)

        payload = encode(make_group(task_id="made-up"))
        assert (await one.process_experiences([payload]))["experience_pipeline/experience_count"] == 4.0
        async with mesh_of.bus.reader(EXPERIENCES, start="beginning") as reader:
            groups = [record_of(received) async for received in reader.replay()]
        assert all(isinstance(group, ExperienceGroup) for group in groups)
        assert "made-up" in {group.task_id for group in groups}

        await asyncio.gather(*(c.submit_batch(batch_id=n, tasks=tasks(2), batch_type="train")
                               for n, c in ((2, one), (3, other), (4, one))))  # fmt: skip
        many = await asyncio.gather(*(c.finalize_train_batch(n) for n, c in ((4, one), (3, one), (2, other))))
        assert [result["batch_id"] for result in many] == [4, 3, 2]


async def test_an_aborted_batch_is_never_trained_on_and_answers_who_waits(mesh: Mesh) -> None:
    async with fleet(mesh) as mesh_of, RolloutCoordinator(mesh_of.settings) as client:
        await client.submit_batch(batch_id=1, tasks=[*tasks(2), *held(1)], batch_type="train")
        await client.submit_batch(batch_id=2, tasks=tasks(2), batch_type="train")
        waiting = asyncio.create_task(client.finalize_train_batch(1))
        await mesh_of.orders("2#t1")
        await mesh_of.orders("1#h0")
        second = asyncio.create_task(client.finalize_train_batch(2))
        # The second batch is complete, and waits for the first one's turn in training.
        await until(lambda: len(mesh_of.explorer.orders) >= 5)
        # Commands have a topic of their own: this one may overtake what the explorer has answered.
        for name in ("1#t0", "1#t1"):
            await mesh_of.counted(name)
        async with RolloutCoordinator(mesh_of.settings) as other:
            await other.abort_batch(1, reason="enough", keep_partial_results=True)
            await other.abort_batch(1, reason="twice is no matter")
        assert (await waiting)["finished_task_count"] == 2
        assert (await second)["finished_task_count"] == 2
        await mesh_of.answer("1#h0")
        await mesh_of.trainer.until_trained(1)
        found = await batches(mesh_of)
        assert (found["1"].state, found["1"].reason) == ("aborted", "enough")
        assert sorted(entry.task_id for entry in found["1"].manifest if entry.parts) == ["1#t0", "1#t1"]
        assert (found["2"].state, found["2"].sequence) == ("finalized", 1)
        assert [batch.batch_id for batch in mesh_of.trainer.trained] == ["2"]
        await until(lambda: bool(mesh_of.explorer.cancelled))
        assert [cancel.task_id for cancel in mesh_of.explorer.cancelled] == ["1#h0"]


async def test_what_a_scheduler_gave_is_trained_on_once_it_is_processed(mesh: Mesh) -> None:
    async with (
        fleet(mesh, batch_size=3) as mesh_of,
        Scheduler(mesh_of.settings) as scheduler,
        RolloutCoordinator(mesh_of.settings) as client,
    ):
        scheduler.schedule(tasks(3), 1)
        _, payloads = await scheduler.get_payload_results(1)
        assert (await client.process_experiences(payloads))["experience_pipeline/experience_count"] == 3.0
        await mesh_of.trainer.until_trained(1)
        manifest = mesh_of.trainer.trained[0].manifest
        assert [entry.task_id.partition("#")[2] for entry in manifest] == ["t0@0", "t1@0", "t2@0"]
        assert [entry.status for entry in manifest] == ["completed"] * 3
        with pytest.raises(ValueError, match=r"3 of 3 contributions are refused: .*known_task"):
            await client.process_experiences(payloads)


async def test_batches_are_trained_in_the_order_of_submission_behind_a_backlog(mesh: Mesh) -> None:
    async with (
        fleet(mesh, max_open_tasks=2, max_inflight_batches=2) as mesh_of,
        RolloutCoordinator(mesh_of.settings) as client,
    ):
        await client.submit_batch(batch_id=0, tasks=held(2), batch_type="train")
        await mesh_of.orders("h0")
        await asyncio.gather(
            *(client.submit_batch(batch_id=n, tasks=tasks(3), batch_type="train") for n in range(1, 31))
        )
        for name in ("h0", "h1"):
            await mesh_of.orders(name)
            await mesh_of.answer(name)
        await mesh_of.trainer.until_trained(31)
        assert [batch.batch_id for batch in mesh_of.trainer.trained] == [str(number) for number in range(31)]
