"""One client contributes without end what takes long to look at; explorers are heard all the same."""

import pytest
from aiokafka import AIOKafkaProducer

from schemas import Contribute, ExperiencePiece, Position
from schemas.topics import COMMANDS, EXPERIENCES
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.waiting import until
from workers.coordinator.contributions import MOST_HELD

pytestmark = pytest.mark.integration


def _contribution(number: int, place: Position) -> Contribute:
    return Contribute(
        client="flood",
        command_id=str(number),
        task_id=f"flood-{number}",
        pieces=[ExperiencePiece(samples=1, position=place)],
        version_min=0,
        version_max=0,
    )


async def test_training_goes_on_behind_contributions_that_take_long_to_look_at(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, producer), FakeTrainer(bus).alive() as trainer:
        # What was aborted lies before the end, and is waited for.
        async with AIOKafkaProducer(
            bootstrap_servers=str(mesh.kafka.bootstrap_servers), transactional_id=f"{mesh.kafka.namespace}.flood"
        ) as outsider:
            await outsider.begin_transaction()
            sent = await outsider.send_and_wait(EXPERIENCES.full_name(mesh.kafka.namespace), b"x", partition=0)
            await outsider.abort_transaction()
        place = Position(partition=0, offset=sent.offset)
        with mesh.coordinator(max_staleness=100):
            await until(lambda: "ready" in mesh.log(1))
            for number in range(3 * MOST_HELD):
                await producer.send(COMMANDS, f"flood-{number}", _contribution(number, place))
            await producer.flush()
            async with FakeExplorer(bus).alive():
                await send_tasks(producer, 8)
                await trainer.until_trained(2)
        assert "explorer lost" not in mesh.log(1)
