"""The secure stack: TLS, a user for each service, rights.

It is up for this file alone, which comes before all that need the other stack, so that a small machine does not carry
two.
"""

import asyncio

import pytest

from schemas import BatchRecord, Task
from schemas.batch import BatchLifecycleState
from schemas.topics import BATCHES
from tests.support.mesh.compose import ComposeStack
from trinity_bus.bus import Bus
from trinity_bus.client import RolloutCoordinator
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BrokerUnreachableError, SendError

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]


def test_it_comes_up_and_everything_is_healthy(secure_stack: ComposeStack, figures: dict[str, str]) -> None:
    figures["from up to healthy, secure"] = f"{secure_stack.up_seconds:.1f} s"
    for service in ("kafka", "coordinator", "explorer", "trainer"):
        assert all(map(secure_stack.healthy, secure_stack.containers(service))), service
    for once in ("access", "topics"):
        (container,) = secure_stack.containers(once)
        assert secure_stack.state(container)["ExitCode"] == 0


async def test_a_client_has_its_task_answered_and_trained_on(secure_stack: ComposeStack) -> None:
    settings = Settings().model_copy(update={"kafka": secure_stack.kafka})
    task = Task(task_id="own", workflow="sequence", prompt="copy 3 1 4 =", answer="3 1 4")
    async with asyncio.timeout(300), RolloutCoordinator(settings, name="test") as coordinator:
        await coordinator.submit_batch(batch_id="mine", tasks=[task], batch_type="train")
        result = await coordinator.finalize_train_batch("mine")
    assert result["finished_task_count"] == 1
    # `watch` runs an event loop of its own.
    view = await asyncio.to_thread(secure_stack.watch, lambda view: len(view.trained) >= 1, "trained step")
    assert view.trained[0].batch_id == "mine"


async def test_a_client_may_not_write_what_is_the_coordinators(secure_stack: ComposeStack) -> None:
    async with Bus(secure_stack.kafka, client_id="test") as bus, bus.producer() as producer:
        batch = BatchRecord(batch_id="forged", batch_type="train", state=BatchLifecycleState.ABORTED, sequence=0)
        with pytest.raises(SendError, match="AuthorizationFailed"):
            await (await producer.send(BATCHES, batch.batch_id, batch))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"sasl_password": "guessed"}, id="with another password"),
        pytest.param({"security_protocol": "PLAINTEXT"}, id="without TLS and password"),
        pytest.param({"ssl_cafile": None}, id="without the authority"),
    ],
)
async def test_who_does_not_log_in_is_not_let_in(secure_stack: ComposeStack, changed: dict[str, str | None]) -> None:
    login = {name: value for name, value in {**secure_stack.login, **changed}.items() if value is not None}
    stranger = secure_stack.kafka_of(**login, request_timeout_s="10")

    async def main(kafka: KafkaSettings) -> None:
        with pytest.raises(BrokerUnreachableError):
            await Bus(kafka, client_id="stranger").start()

    await main(stranger)
