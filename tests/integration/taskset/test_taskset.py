"""The taskset's process on a real broker, killed again and again, with a real coordinator and fake workers."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import Task
from schemas.topics import TASKS
from tests.support.fakes.workers import WAIT_S, FakeExplorer, FakeTrainer
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import PROGRAM, environment, unused, with_topics
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Process, tail

pytestmark = pytest.mark.integration

LINES = 40


class Files:
    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = unused(kafka)
        self.folder = folder
        self.train = folder / "train.jsonl"
        for path, count in ((self.train, LINES), (folder / "held-out.jsonl", 3)):
            tasks = [
                {"task_id": f"{path.stem}-{i}", "workflow": "math", "prompt": "1 + 1", "answer": "2"}
                for i in range(count)
            ]
            path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
        self.sets = folder / "tasks.toml"
        self.sets.write_text(
            '[[train]]\npath = "train.jsonl"\n'
            '[[eval]]\nname = "held-out"\npath = "held-out.jsonl"\n[[eval]]\nname = "again"\npath = "held-out.jsonl"\n'
        )

    @contextlib.contextmanager
    def service(self, module: str, **settings: object) -> Iterator[Process]:
        env = environment(self.kafka, **settings) | {"PYTHONWARNINGS": "error"}
        log = self.folder / f"{module}.log"
        process = forked(PROGRAM, "run", module, name=module, env=env, output=log)
        with process, log_shown_on_failure(process, log):
            yield process

    def taskset(self, **settings: object) -> contextlib.AbstractContextManager[Process]:
        return self.service(
            "taskset",
            taskset__path=self.sets,
            taskset__eval_interval=4,
            taskset__epochs=2,
            taskset__ahead=12,
            **settings,
        )

    def log(self) -> str:
        return tail(self.folder / "taskset.log", 100)


@pytest.fixture
def files(kafka: KafkaSettings, tmp_path: Path) -> Files:
    return Files(kafka, tmp_path)


async def test_a_killed_taskset_uses_every_line_once_in_every_epoch(files: Files) -> None:
    async with with_topics(files.kafka) as bus:
        with files.service("coordinator", coordinator__batch_size=4):
            async with (
                FakeExplorer(bus, slots=8).alive(),
                FakeTrainer(bus).alive() as trainer,
                bus.reader(TASKS, start="beginning") as reader,
            ):
                seen: list[Task] = []

                async def produced(count: int) -> None:
                    async with asyncio.timeout(WAIT_S):
                        while len(seen) < count:
                            seen.extend(record_of(received) for received in await reader.batch(10))

                for count in (1, 21, 47):
                    with files.taskset() as child:
                        await produced(count)
                        child.kill()
                with files.taskset() as child:
                    await until(lambda: child.poll() is not None)
                    assert child.poll() == 0, files.log()
                await until(lambda: len(trainer.trained) == 2 * LINES // 4)
            async with bus.reader(TASKS, start="beginning") as whole:
                seen = [record_of(received) async for received in whole.replay(written=True)]
        train = [task.task_id for task in seen if task.batch_type == "train"]
        assert Counter(train) == Counter(f"taskset-0/{epoch}/train-{i}" for epoch in range(2) for i in range(LINES))
        evals = Counter(task.batch_id for task in seen if task.batch_type == "eval")
        assert evals
        assert set(evals.values()) == {3}
        assert {str(batch_id).partition("/")[2] for batch_id in evals} == {"held-out", "again"}
        assert {int(str(batch_id).partition("/")[0]) % 4 for batch_id in evals} == {0}


async def test_a_second_taskset_of_a_name_fences_the_first(files: Files) -> None:
    async with with_topics(files.kafka) as bus, bus.reader(TASKS, start="beginning") as reader:
        # The second hears again what the first was answered.
        with files.taskset(taskset__order="by_difficulty") as first:
            assert await reader.batch(WAIT_S)
            with files.taskset(taskset__order="by_difficulty") as second:
                await until(lambda: files.log().count("ready") == 2)
                async with FakeExplorer(bus).alive(), FakeTrainer(bus).alive():
                    with files.service("coordinator", coordinator__batch_size=4):
                        await until(lambda: first.poll() is not None and second.poll() is not None)
                assert (first.poll() or 0) > 0
                assert second.poll() == 0, files.log()
    assert "another taskset 'taskset-0' has started; this one stops" in files.log()
