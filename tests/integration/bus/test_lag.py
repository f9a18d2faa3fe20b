"""Consumer lag, as readers tell it."""

import pytest

from schemas import Task
from schemas.topics import TASKS
from tests.support.mesh.mesh import unused
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration


async def test_lag_is_what_the_log_has_beyond_what_was_returned(kafka: KafkaSettings) -> None:
    mine = unused(kafka)
    async with Bus(mine, client_id="test") as bus:
        await bus.ensure_topics([TASKS])
        async with bus.producer() as producer:
            for i in range(12):
                await producer.send(TASKS, "same key", Task(task_id=f"t-{i}", workflow="math", prompt="?"))
        # It knows the end of the log as of its last fetch.
        async with bus.reader(TASKS, start="beginning", max_records=5) as reader:
            returned = 0
            while returned < 12:
                returned += len(await reader.batch(10))
                assert reader.lag() == {"tasks": 12 - returned}
