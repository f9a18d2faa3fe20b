"""The coordinator's process on a real broker, with fake explorers and a fake trainer around it."""

import asyncio
import json
import random
from collections import Counter

import pytest

from schemas import ExperienceGroup, Task
from schemas.topic import DLQ_REASON
from schemas.topics import BATCHES, DEAD_LETTERS, EXPERIENCES, TASKS
from tests.support.fakes.workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import record_of, take
from tests.support.mesh.waiting import until
from trinity_bus.bus.read.received import header
from trinity_bus.telemetry import load_spans

pytestmark = pytest.mark.integration

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_batches_finalize_on_policy_in_order_and_their_manifests_can_be_read(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator():
            first, second = FakeExplorer(bus, "explorer-0", slots=2), FakeExplorer(bus, "explorer-1", slots=2)
            async with first.alive(), second.alive(), FakeTrainer(bus).alive() as trainer:
                # Else the one that is first may have done all before the other serves anything.
                await until(lambda: first.version == second.version == 0)
                await send_tasks(producer, 12)
                await send_tasks(producer, 3, "held", batch_id="1/held-out", batch_type="eval", batch_size=3)
                await trainer.until_trained(3)
                await until(lambda: bool(trainer.evaluated))
        assert [batch.sequence for batch in trainer.trained] == [1, 2, 3]
        assert [batch.min_version for batch in trainer.trained] == [0, 1, 2]
        assert first.orders
        assert second.orders
        for batch in trainer.trained:
            # On-policy: every token of batch k is drawn by version k - 1.
            assert {(e.version_min, e.version_max) for e in batch.manifest} == {(batch.sequence - 1,) * 2}
            positions = [p.position for e in batch.manifest for p in e.parts if p.position is not None]
            groups = [record_of(received) for received in await bus.fetch(EXPERIENCES, positions)]
            assert all(isinstance(group, ExperienceGroup) for group in groups)
            assert [g.task_id for g in groups] == [entry.task_id for entry in batch.manifest]
            assert batch.metrics["rollout/reward/mean"] == 1.0
            assert batch.metrics["rollout/finished_task_count"] == 4.0
        evaluated = trainer.evaluated[0]
        assert evaluated.metrics["eval/held-out/reward/mean@1"] == 1.0
        assert all(part.position is None for entry in evaluated.manifest for part in entry.parts)
        assert all(entry.status == "completed" for entry in evaluated.manifest)


@pytest.mark.timeout(600)
async def test_killed_at_random_points_every_task_has_exactly_one_result(mesh: Mesh) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - a schedule of kills
    batches, kills = 25, 8

    async with mesh.connected() as (bus, producer):
        explorer, trainer = FakeExplorer(bus, slots=3), FakeTrainer(bus)
        async with explorer.alive(), trainer.alive():
            sending = asyncio.create_task(send_tasks(producer, 4 * batches))
            for kill in range(kills):
                with mesh.coordinator() as process:
                    await until(lambda log=kill + 1: "ready" in mesh.log(log))  # type: ignore[misc]
                    # A point in its work, not in time: some orders later, as far as there are so many.
                    goal = min(len(explorer.orders) + rng.randrange(1, 12), 4 * batches)
                    await until(lambda goal=goal: len(explorer.orders) >= goal)  # type: ignore[misc]
                    await asyncio.to_thread(process.kill)
            with mesh.coordinator():
                await sending
                await trainer.until_trained(batches)
        counted = Counter(entry.task_id for batch in trainer.trained for entry in batch.manifest)
        assert counted == Counter({f"task-{number}": 1 for number in range(4 * batches)})
        assert [batch.sequence for batch in trainer.trained] == list(range(1, batches + 1))
        entries = [entry for batch in trainer.trained for entry in batch.manifest]
        assert not [entry for entry in entries if entry.error is not None]
        positions = [p.position for e in entries for p in e.parts if p.position is not None]
        groups = [record_of(received) for received in await bus.fetch(EXPERIENCES, positions)]
        assert [(g.task_id, g.attempt) for g in groups] == [(e.task_id, p.attempt) for e in entries for p in e.parts]


async def test_bad_tasks_become_dead_letters_and_good_ones_go_on(mesh: Mesh) -> None:
    def task(task_id: str, **fields: object) -> bytes:
        return json.dumps({"task_id": task_id, "workflow": "math", "prompt": "1", **fields}).encode()

    bad = {
        b"neither": (b"not json at all", "not_msgpack_or_json"),
        b"lacking": (b'{"task_id": "lacking", "prompt": "1"}', "missing_field"),
        b"typed": (task("typed", repeat_times="three"), "wrong_type"),
        b"large": (task("large", prompt="x" * Task.MAX_BYTES), "too_large"),
        b"strange": (task("strange", workflow="nobody-has-it"), "unknown_workflow"),
        b"twice": (task("task-0"), "duplicate_task"),
        b"full": (task("full", batch_id="mine", batch_size=3), "batch_mismatch"),
    }

    async with mesh.connected() as (bus, producer), bus.reader(DEAD_LETTERS, start="beginning") as letters:
        explorer = FakeExplorer(bus)
        with mesh.coordinator():
            async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
                await send_tasks(producer, 1)
                await producer.send(TASKS, "m", Task(task_id="m", workflow="math", prompt="1", batch_id="mine"))
                await producer.flush()
                await until(lambda: explorer.version == 0)
                # They lie in other partitions than what follows, which may be read first.
                async with bus.reader(BATCHES, start="beginning") as batches:
                    known: set[str | None] = set()
                    async with asyncio.timeout(WAIT_S):
                        while len(known) < 2:
                            known |= {received.key for received in await batches.batch(1)}
                for key, (value, _) in bad.items():
                    await producer.send_raw(TASKS, key, value, partition=0)
                found = await take(letters, len(bad))
                await send_tasks(producer, 3, "later")
                await trainer.until_trained(1)
        reasons = {letter.raw_key: header(letter.headers, DLQ_REASON) for letter in found}
        for key, (value, reason) in bad.items():
            letter = next(letter for letter in found if letter.raw_key == key)
            assert letter.raw == value
            assert reasons[key] == reason
        assert {e.task_id for e in trainer.trained[0].manifest} == {"task-0", "later-0", "later-1", "later-2"}


async def test_what_waits_survives_a_restart_with_its_trace(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator(batch_size=1) as process:
            task = Task(task_id="traced", workflow="math", prompt="1")
            await producer.send_raw(TASKS, "traced", task_bytes(task), traceparent=TRACE)
            async with bus.reader(BATCHES, start="beginning") as batches:
                async with asyncio.timeout(WAIT_S):
                    while not await batches.batch(1):
                        pass
            await asyncio.to_thread(process.kill)
        with mesh.coordinator(batch_size=1) as process:
            explorer = FakeExplorer(bus)
            async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
                await trainer.until_trained(1)
            assert await asyncio.to_thread(process.stop, 60) == 0
        (order,) = explorer.orders
        assert order.traceparent is not None
        assert order.traceparent.split("-")[1] == TRACE.split("-")[1]
        assert order.traceparent != TRACE, "the dispatch has a span of its own"
        assert trainer.trained[0].trace_links == [order.traceparent]
        spans = {span.name: span for span in load_spans(mesh.folder)}
        assert spans["dispatch"].parent_id == TRACE.split("-")[2]
        assert "announce version" in spans


async def test_a_silent_explorer_loses_its_tasks_to_another(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer):
        with mesh.coordinator(explorer_timeout_s=4):
            stuck = FakeExplorer(bus, "explorer-0", hold=lambda _: True)
            helper = FakeExplorer(bus, "explorer-1")
            async with FakeTrainer(bus).alive() as trainer:
                async with stuck.alive():
                    await send_tasks(producer, 4)
                    await until(lambda: len(stuck.orders) >= 4)
                async with helper.alive():
                    await trainer.until_trained(1)
        # More where the machine stood still, and the other one was silent as well.
        assert min(part.attempt for entry in trainer.trained[0].manifest for part in entry.parts) >= 2
        assert "explorer lost: explorer-0" in mesh.log()


def task_bytes(task: Task) -> bytes:
    return task.model_dump_json(exclude_none=True).encode()
