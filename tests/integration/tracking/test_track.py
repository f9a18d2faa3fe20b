"""Metrics of a log that grows, written by a tracker that is killed."""

import asyncio
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from benchmarks._records import step_trained
from schemas.topics import TRAINER_EVENTS
from tests.support.mesh.mesh import environment, unused
from tests.support.mesh.waiting import until
from tests.support.tracking import board_events
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.tracking.metrics_ledger import TOPICS

pytestmark = pytest.mark.integration

STEPS = 60


def lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(one) for one in text.splitlines(keepends=True)[1:] if one.endswith("\n")]


async def test_a_tracker_that_is_killed_misses_nothing_and_writes_nothing_twice(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    log = unused(kafka)
    file = tmp_path / "metrics.jsonl"

    async def tracker(*more: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "workers.cli.app", "track", "--out", str(tmp_path)]
        command += ["--tensorboard", "--mlflow", "runs", *more]
        return await asyncio.create_subprocess_exec(*command, env=environment(log))

    def written(process: asyncio.subprocess.Process, wanted: int) -> bool:
        return process.returncode is not None or len(lines(file)) >= wanted

    async with Bus(log, client_id="test") as bus, bus.producer() as producer:
        await bus.ensure_topics(TOPICS)

        async def trained(first: int, last: int) -> None:
            for step in range(first, last):
                event = step_trained(step, "i", metrics={"loss": 1 / step})
                await (await producer.send(TRAINER_EVENTS, "trainer-0", event))

        await trained(1, 21)
        process = await tracker()
        try:
            # It was started late, and writes the past; killed while there is more to come.
            sending = asyncio.create_task(trained(21, STEPS + 1))
            await until(partial(written, process, 21), 120)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()
            await sending
        assert process.returncode == -signal.SIGKILL
        process = await tracker("--once")
        assert await process.wait() == 0
        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
        (run,) = client.search_runs([client.get_experiment_by_name("runs").experiment_id])
        # As one that was killed after it had written values, and before it had said so.
        client.set_tag(run.info.run_id, "trinity_bus.lines", "17")
        process = await tracker("--once")
        assert await process.wait() == 0
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((one.step, one.value) for one in losses) == [(step, 1 / step) for step in range(1, STEPS + 1)]
    assert client.get_run(run.info.run_id).data.tags["trinity_bus.lines"] == str(STEPS)
    events = board_events(tmp_path / "tensorboard")
    assert (sorted(step for step, _ in events), set(events.values())) == (list(range(1, STEPS + 1)), {1})
    found = lines(file)
    assert [one["step"] for one in found] == list(range(1, STEPS + 1))
    assert found[3]["metrics"] == {"loss": 0.25}
