"""A coordinator stands still amid a commit, alone or with its broker, for longer than it waits: results are once."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from schemas import TaskResult
from schemas.topics import RESULTS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, own_broker, send_tasks
from tests.support.mesh.waiting import until
from tests.support.sampled import at_night
from trinity_bus.broker import EmbeddedBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

OUTAGE_S = 5
FREEZE_S = 6
INSTANTS = [
    ("EndTxnHandler", "sent", True, 0.05),
    ("EndTxnHandler", "sent", True, 1.0),
    ("EndTxnHandler", "sent", False, 0.0),
    ("EndTxnHandler", "asked", True, 0.0),
    ("EndTxnHandler", "answered", False, 0.0),
    ("AddPartitionsToTxnHandler", "sent", True, 0.05),
    ("AddPartitionsToTxnHandler", "sent", False, 0.0),
    ("SendProduceReqHandler", "sent", True, 0.05),
    ("SendProduceReqHandler", "sent", False, 0.0),
    ("AddOffsetsToTxnHandler", "sent", True, 0.05),
    ("TxnOffsetCommitHandler", "sent", True, 0.05),
]


SOME = [INSTANTS[number] for number in (1, 4, 7)]


@pytest.mark.parametrize("instants", [SOME, at_night(INSTANTS)], ids=["some", "all"])
async def test_results_are_once_whatever_request_of_a_commit_it_stands_still_at(
    tmp_path: Path, instants: list[tuple[str, str, bool, float]]
) -> None:
    with EmbeddedBroker(own_broker(tmp_path / "broker")) as broker:
        mesh = Mesh(broker.kafka_settings(), tmp_path)
        environment = {
            "BROKER_PID": str(broker.pid),
            "FREEZE_AT": json.dumps(instants),
            "FREEZE_S": str(FREEZE_S),
            "TRINITY_BUS_KAFKA__OUTAGE_S": str(OUTAGE_S),
        }
        async with (
            mesh.connected() as (bus, producer),
            FakeExplorer(bus).alive(),
            FakeTrainer(bus).alive() as trainer,
        ):
            with mesh.coordinator(
                module="tests.support.fakes.freezing_coordinator", variables=environment, explorer_timeout_s=60
            ) as coordinator:
                for rounds in itertools.count(1):
                    await send_tasks(producer, 4, f"round-{rounds}")
                    await trainer.until_trained(rounds)
                    if "; 0 instants are left" in mesh.log():
                        break
                await until(lambda: "; 0 instants are left" in mesh.log())
                assert coordinator.poll() is None
        sent = {f"round-{number}-{task}" for number in range(1, rounds + 1) for task in range(4)}
        async with mesh.connected() as (bus, _), bus.reader(RESULTS, start="beginning") as reader:
            results = [item.record async for item in reader.replay(written=True)]
        assert Counter(result.task_id for result in results if isinstance(result, TaskResult)) == Counter(sent)
        trained = Counter(entry.task_id for batch in trainer.trained for entry in batch.manifest)
        assert trained == Counter(sent)
    assert "Traceback" not in mesh.log()
    assert "taken back" not in mesh.log()
