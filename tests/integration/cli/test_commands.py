"""Commands that talk to the log, as a user runs them, against a real broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ExplorerHeartbeat,
    RunnersReport,
    RunnerState,
    Task,
)
from schemas.topics import BATCHES, DEMONSTRATIONS, EXPLORER_EVENTS, PREFERENCES, TASKS
from tests.support.mesh.mesh import trinity_bus, unused, with_topics
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import beside, until
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.telemetry import load_spans

pytestmark = pytest.mark.integration


@pytest.fixture
def log(kafka: KafkaSettings) -> KafkaSettings:
    return unused(kafka)


def tasks_file(folder: Path, *lines: str) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def task(number: int) -> str:
    return json.dumps({"task_id": f"t{number}", "workflow": "math", "prompt": f"{number} + 1 =", "answer": "2"})


def train_batch(name: str, state: BatchLifecycleState, **more: Any) -> BatchRecord:
    return BatchRecord(batch_id=name, batch_type="train", state=state, expected_task_count=64, **more)


async def tasks_in(log: KafkaSettings) -> list[str]:
    async with with_topics(log, [TASKS]) as bus, bus.reader(TASKS, start="beginning") as reader:
        return sorted([record_of(received).task_id async for received in reader.replay()])


async def test_produced_tasks_are_in_the_log_and_their_trace_begins(log: KafkaSettings, tmp_path: Path) -> None:
    file = tasks_file(tmp_path, *(task(i) for i in range(2500)))
    run_dir = tmp_path / "run"
    done = trinity_bus(log, "produce", file, telemetry__run_dir=run_dir)
    assert done.returncode == 0, done.stderr
    assert "Sent 2,500 tasks" in done.stderr
    assert f"trinity-bus trace t0 --run-dir {run_dir}" in done.stderr
    assert await tasks_in(log) == sorted(f"t{i}" for i in range(2500))
    assert {span.name for span in load_spans(run_dir)} == {"send tasks"}

    traced = trinity_bus(log, "trace", "t7", "--run-dir", str(run_dir))
    assert traced.returncode == 0
    assert "send tasks" in traced.stdout
    unknown = trinity_bus(log, "trace", "nobody", "--run-dir", str(run_dir))
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("trinity-bus: no span of task 'nobody'")


async def test_bad_lines_hold_back_the_good_ones_unless_told_otherwise(log: KafkaSettings, tmp_path: Path) -> None:
    file = tasks_file(tmp_path, task(1), "{", task(2), task(1))
    refused = trinity_bus(log, "produce", file)
    assert refused.returncode == 1
    assert "tasks.jsonl:2" in refused.stderr
    assert "tasks.jsonl:4" in refused.stderr
    assert await tasks_in(log) == []
    assert trinity_bus(log, "produce", "--keep-going", file).returncode == 1
    assert await tasks_in(log) == ["t1", "t2"]


async def test_produced_examples_are_in_the_log_in_the_order_of_their_lines(log: KafkaSettings, tmp_path: Path) -> None:
    shown = [json.dumps({"prompt": f"{i} + 1 =", "response": f"{i + 1}"}) for i in range(1500)]
    preferred = [json.dumps({"example_id": "p-1", "prompt": "1 + 1 =", "chosen": "2", "rejected": "3"})]
    for kind, topic, lines in (("demonstrations", DEMONSTRATIONS, shown), ("preferences", PREFERENCES, preferred)):
        refused = trinity_bus(log, "produce", "--kind", kind, tasks_file(tmp_path, *lines, '{"prompt": "?"}'))
        assert refused.returncode == 1
        assert f"tasks.jsonl:{len(lines) + 1}: " in refused.stderr, refused.stderr
        done = trinity_bus(log, "produce", "--kind", kind, tasks_file(tmp_path, *lines))
        assert done.returncode == 0, done.stderr
        assert ("Sent 1,500 demonstrations" if kind == "demonstrations" else "Sent 1 preference to") in done.stderr
        async with Bus(log, client_id="test") as bus, bus.reader(topic, start="beginning") as reader:
            found = [record_of(received) async for received in reader.replay()]
        assert [record.prompt for record in found] == [json.loads(line)["prompt"] for line in lines]
        assert found[0].example_id == ("tasks:1" if kind == "demonstrations" else "p-1")


async def test_dead_letters_are_listed_with_their_reasons(log: KafkaSettings) -> None:
    async with with_topics(log) as bus:
        assert "No dead letters." in trinity_bus(log, "dead-letters").stdout
        async with bus.producer() as producer:
            await (await producer.send_raw(TASKS, "k1", b"{oops", partition=0))
            async with bus.reader(TASKS, start="beginning") as reader:
                async for received in reader.replay():
                    await (await producer.send_dead_letter(received, "not_msgpack_or_json", "a\x1b[2Jb"))
    listed = trinity_bus(log, "dead-letters")
    assert listed.returncode == 0, listed.stderr
    assert "not_msgpack_or_json" in listed.stdout
    assert "tasks/0@0" in listed.stdout
    assert "\x1b[2J" not in listed.stdout
    (line,) = trinity_bus(log, "dead-letters", "--json").stdout.splitlines()
    assert json.loads(line)["value"] == "{oops"


async def test_status_tells_of_batches_explorers_and_lag(log: KafkaSettings) -> None:
    async with Bus(log, client_id="test") as bus:
        # Before any coordinator has been here.
        await bus.ensure_topics([BATCHES, EXPLORER_EVENTS, TASKS])
        async with bus.producer() as producer:
            batch = train_batch("b-17", BatchLifecycleState.RUNNING, sequence=17, completed_task_count=5)
            beat = ExplorerHeartbeat(explorer="explorer-9", incarnation="a", state="ready", slots=8, model_version=16)
            sent = [
                await producer.send(BATCHES, batch.batch_id, batch),
                await producer.send(EXPLORER_EVENTS, beat.explorer, beat),
                await producer.send(TASKS, "t", Task(task_id="t", workflow="math", prompt="1")),
            ]
            await asyncio.gather(*sent)
    shown = trinity_bus(log, "status", "--once")
    assert shown.returncode == 0, shown.stderr
    lag = "1 tasks, 0 commands, 0 operator-commands, 1 explorer-events, 0 trainer-events"
    for part in ("b-17", "running", "5/64", "explorer-9", "16", lag):
        assert part in shown.stdout


async def test_only_a_batch_that_goes_on_can_be_aborted(log: KafkaSettings) -> None:
    async with with_topics(log) as bus, bus.producer() as producer:
        batch = train_batch("1", BatchLifecycleState.FINALIZED, sequence=1)
        await (await producer.send(BATCHES, batch.batch_id, batch))
    unknown = trinity_bus(log, "abort", "2", "--reason", "enough")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("No batch is called '2'")
    ended = trinity_bus(log, "abort", "1", "--reason", "enough")
    assert ended.returncode == 1
    assert "Batch 1 is finalized" in ended.stderr
    assert trinity_bus(log, "abort", "1").returncode == 2


async def test_runners_of_every_explorer_are_listed(log: KafkaSettings) -> None:
    reported = asyncio.Event()

    async def report(bus: Bus) -> None:
        """As explorers do, because whoever falls silent is not listed."""
        async with bus.producer() as producer:
            while True:
                for name in ("explorer-9", "explorer-8"):
                    runner = RunnerState(runner=f"{name}/0", state="idle", pid=4242)
                    told = RunnersReport(explorer=name, incarnation="a", runners=[runner])
                    await (await producer.send(EXPLORER_EVENTS, name, told))
                reported.set()
                await asyncio.sleep(0.5)

    async with with_topics(log) as bus, beside(report(bus)) as reporting:
        # A command that looks before shows those that have spoken until then.
        await until(lambda: reported.is_set() or reporting.done())
        shown, listed = [await asyncio.to_thread(trinity_bus, log, "runners", how) for how in ("--once", "--json")]
    rows = [line.strip("│").split()[0] for line in shown.stdout.splitlines() if line.startswith("│")]
    told = [json.loads(line)["runner"] for line in listed.stdout.splitlines()]
    assert rows == told == ["explorer-8/0", "explorer-9/0"]
