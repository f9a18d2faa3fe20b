"""The console's index: how fast it takes up the log, and how soon its answers are there.

A mesh is made up: groups of 8 samples with prompts of 60 and responses of 20 to 100 words, of a vocabulary of 20,000
that is used as languages use theirs (Zipf), and with each group its task, order, end and result; a batch and a step
for each 64 of them; one sample in 10,000 has a word and a reward of its own. All are handed to the store as bytes, as
a reader of the log has them: decoding, tokenizer, rows, words and commits count, fetching from a broker does not.

Times are those of the processor, of one core, because a machine that others use says little by the clock; an answer's
is the median of several. Nothing is asked of the disk that the system's cache does not hold.
"""

import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks._options import parser
from benchmarks._records import named_group, step_trained
from benchmarks._report import Row, less, report
from schemas import (
    BatchLifecycleState,
    BatchRecord,
    ExperienceGroup,
    Position,
    RolloutFinished,
    StepTrained,
    Task,
    TaskResult,
)
from schemas.batch import ResultPart
from schemas.codec import decode, encode
from schemas.rollout import Dispatch
from schemas.step import StepBegun, StepGroup
from schemas.topic import Topic
from schemas.topics import BATCHES, EXPERIENCES, EXPLORER_EVENTS, RESULTS, ROLLOUTS, STEPS, TASKS, TRAINER_EVENTS
from trinity_bus.bus import Received
from trinity_bus.console.index.group_rows import Texts
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import PageAsk, SampleFilter
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.tokens import byte_level_texts
from trinity_bus.runtime.heap import freeze_gc

GROUP, BATCH = 8, 64
PROMPT, VOCABULARY = 60, 20_000
RARE: Final = VOCABULARY - 1
CHUNK, COMMIT = 256, 4
"""Groups that are taken up at once, and how often that is done until it is committed: half a second's."""
STARTED_S = 1_700_000_000
BATCHES_A_MINUTE = 4
KEPT = 2048
"""Groups that are made up; then they come again, with other ids and versions."""
ID, BATCH_ID = "task-00000000", "batch-000000"
VERSION = 0x7A7A7A7A
WHO: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "a"}

type Encoded = tuple[Topic, type, int, bytes, float]
"""Topic, type, partition, value, and the time of writing."""


class Mesh:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._ends: dict[tuple[str, int], int] = {}
        weights = 1 / np.arange(1, VOCABULARY)
        self._words = np.searchsorted(np.cumsum(weights / weights.sum()), self._rng.random(1 << 20)).astype(np.int32)
        task = Task(task_id=ID, workflow="math", prompt="What is 17 + 25? " * 10, answer="42")
        of_batch: dict[str, Any] = {"batch_id": BATCH_ID, "batch_type": "train"}
        order = Dispatch(task=task, attempt=1, repeat_times=GROUP, timeout_s=60, **of_batch, **WHO)
        done: dict[str, Any] = {"task_id": ID, "status": "completed", "completed_runs": GROUP, "total_runs": GROUP}
        end = RolloutFinished(attempt=1, samples=GROUP, **of_batch, **done, **WHO)
        result = TaskResult(attempts=1, **of_batch, **done)
        kinds = (TASKS, task), (ROLLOUTS, order), (EXPLORER_EVENTS, end), (RESULTS, result)
        # Made once and given other ids: to make them is not what is measured.
        self._beside = [(topic, type(record), encode(record)) for topic, record in kinds]
        self._kept: list[bytes] = []

    def groups(self, first: int, count: int) -> Iterator[Encoded]:
        for number in range(first, first + count):
            at = STARTED_S + number // BATCH * 60 / BATCHES_A_MINUTE + number % BATCH / 10
            for topic, kind, value in self._beside:
                yield topic, kind, 0, _named(value, number), at
            value = _named(self._group(number), number)
            value = value.replace(np.int32(VERSION).tobytes(), np.int32(number // BATCH).tobytes())
            yield EXPERIENCES, ExperienceGroup, number % 8, value, at
            if (number + 1) % BATCH == 0:
                yield from self._batch(number // BATCH, at)

    def received(self, encoded: Encoded) -> Received[Any]:
        topic, kind, partition, value, at = encoded
        offset = self._ends.get((topic.name, partition), 0)
        self._ends[topic.name, partition] = offset + 1
        return Received(
            record=decode(value, kind),
            topic=topic,
            partition=partition,
            offset=offset,
            key=None,
            raw=value,
            headers=(),
            traceparent=None,
            timestamp_ms=round(at * 1000),
        )

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        return self._ends

    def _group(self, number: int) -> bytes:
        rare = number % (10_000 // GROUP) == 0
        if rare or len(self._kept) < KEPT:
            value = encode(self._made(rare=rare))
            if not rare:
                self._kept.append(value)
            return value
        return self._kept[number % KEPT]

    def _made(self, *, rare: bool) -> ExperienceGroup:
        rng = self._rng
        responses = rng.integers(20, 101, GROUP)
        prompt = self._drawn(PROMPT)
        tokens = [np.concatenate([prompt, self._drawn(int(n))]) for n in responses]
        rewards = rng.integers(0, 3, GROUP) / 2
        if rare:
            tokens[0][-1], rewards[0] = RARE, 0.67
        total = int(responses.sum())
        return ExperienceGroup(
            **named_group(ID, BATCH_ID),
            tokens=np.concatenate(tokens),
            lengths=(responses + PROMPT).astype(np.int32),
            prompt_lengths=np.full(GROUP, PROMPT, np.int32),
            logprobs=-rng.random(total, np.float32),
            mask_bits=np.full((total + 7) // 8, 255, np.uint8),
            rewards=rewards.astype(np.float32),
            run_ids=np.arange(GROUP, dtype=np.int32),
            versions=np.array([[i, 0, VERSION] for i in range(GROUP)], np.int32),
            finish_reasons=["stop"] * GROUP,
        )

    def _drawn(self, count: int) -> Any:
        at = int(self._rng.integers(0, len(self._words) - count))
        return self._words[at : at + count]

    def _batch(self, number: int, at: float) -> Iterator[Encoded]:
        batch_id, step = f"batch-{number:06}", number + 1
        rewards = {"rollout/reward/mean": 0.5, **{f"rollout/metric-{i}/mean": i + 0.5 for i in range(9)}}
        batch = BatchRecord(
            batch_id=batch_id,
            batch_type="train",
            state=BatchLifecycleState.FINALIZED,
            sequence=step,
            min_version=number,
            metrics=rewards,
        )
        groups = [
            StepGroup(
                task_id=f"task-{i:08}",
                parts=[ResultPart(attempt=1, samples=GROUP, position=Position(partition=i % 8, offset=i // 8))],
            )
            for i in range(number * BATCH, (number + 1) * BATCH)
        ]
        begun = StepBegun(
            trainer="trainer-0",
            incarnation="a",
            model="policy",
            batch_id=batch_id,
            run="r",
            step=step,
            sequence=step,
            next_offset=number + 1,
            groups=groups,
        )
        metrics = {"loss": 0.1, "entropy": 1.0, "kl": 0.01, "grad_norm": 1.0}
        trained = step_trained(step, "a", batch_id=batch_id, metrics=metrics, checksum="0" * 64)
        yield BATCHES, BatchRecord, 0, encode(batch), at + 1
        yield STEPS, StepBegun, 0, encode(begun), at + 2
        yield TRAINER_EVENTS, StepTrained, 0, encode(trained), at + 3


def _named(value: bytes, number: int) -> bytes:
    ids = f"task-{number:08}".encode(), f"batch-{number // BATCH:06}".encode()
    return value.replace(ID.encode(), ids[0]).replace(BATCH_ID.encode(), ids[1])


def tokenizer() -> Texts:
    return byte_level_texts({f"Ġw{i}": i for i in range(VOCABULARY)})


def index_all(mesh: Mesh, store: Store, begin: int, samples: int) -> float:
    """Index samples from one number to another, and return the seconds of processor time that it took."""
    spent = 0.0
    chunks = range(begin // GROUP, samples // GROUP, CHUNK)
    for number, first in enumerate(chunks, start=1):
        encoded = list(mesh.groups(first, min(CHUNK, samples // GROUP - first)))
        began = time.process_time()
        hold = number % COMMIT > 0 and number < len(chunks)
        store.take([mesh.received(one) for one in encoded], mesh.positions, hold=hold)
        spent += time.process_time() - began
    return spent


def questions(index: Index, samples: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    groups = samples // GROUP
    steps = groups // BATCH
    half = STARTED_S + steps / 2 * 60 / BATCHES_A_MINUTE
    names = ["loss", "entropy", "kl", "grad_norm", "rollout/reward/mean"]
    task = f"task-{groups // 2:08}"
    first: dict[str, Callable[[], Any]] = {
        "overview": lambda: (index.extent(), index.metrics(names), index.metrics(names, by="time"), index.fleet()),
        "batches": index.batches,
        "steps": index.steps,
        "a step with its groups and histogram": lambda: (
            index.step(steps),
            index.groups(SampleFilter(step=steps)),
            index.reward_histogram(SampleFilter(step=steps)),
        ),
        "a task": lambda: index.task(task),
        "samples and their histogram": lambda: (index.samples(), index.reward_histogram()),
        "samples of half the time ago": lambda: index.samples(until=half),
        "the page far behind": lambda: index.samples(SampleFilter(), PageAsk(after=str(int(half * 1000) << 22))),
    }

    def search(**wanted: Any) -> Callable[[], Any]:
        return lambda: index.samples(SampleFilter(**wanted))

    searches = {
        "a task": search(task_id=task),
        "a word that most have": search(text="w1"),
        "two words": search(text="w300 w301"),
        "a word of one sample in 10,000": search(text=f"w{RARE}"),
        "a phrase that nobody wrote": search(text=f'"w{RARE} w1 w{RARE}"'),
        "a reward of one sample in 10,000": search(reward_min=0.6, reward_max=0.7),
        "a reward of every third": search(reward_min=0.9),
        "the oldest version": search(version_max=0),
        "a word, a reward and a version": search(text="w7", reward_min=0.9, version_max=steps // 2),
    }
    return first, searches


def median_ms(ask: Callable[[], Any], times: int) -> tuple[float, float]:
    """Median milliseconds of processor time, and by the clock."""
    spent, waited = [], []
    for _ in range(times):
        began, began_at = time.process_time(), time.perf_counter()
        ask()
        spent.append((time.process_time() - began) * 1000)
        waited.append((time.perf_counter() - began_at) * 1000)
    return statistics.median(spent), statistics.median(waited)


def answers(folder: Path, samples: int) -> list[Row]:
    size = f"{samples / 1e6:g} M"
    with Index(folder, search_s=60) as index:
        first, searches = questions(index, samples)
        pages = {name: median_ms(ask, 5) for name, ask in first.items()}
        found = {name: median_ms(ask, 5) for name, ask in searches.items()}
    rows = []
    for kind, times, goal in (("first content, slowest page", pages, 300), ("search, slowest", found, 1000)):
        rows += [
            less(f"{size}: {kind}", max(ms for ms, _ in times.values()), "ms", goal),
            less(f"{size}: {kind}, by the clock", max(ms for _, ms in times.values()), "ms"),
        ]
    rows += [less(f"{size}: page: {name}", ms, "ms") for name, (ms, _) in pages.items()]
    return rows + [less(f"{size}: search: {name}", ms, "ms") for name, (ms, _) in found.items()]


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--samples", type=int, nargs="+", default=[1_000_000], help="at how many the index is asked, in rising order"
    )
    options = arguments.parse_args()
    # As the service does.
    freeze_gc()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mesh, begin = Mesh(), 0
        with Store(folder / "plain", texts="none") as store:
            plain_spent = index_all(Mesh(), store, 0, 20_000)
        rows = [Row("indexed without text", 20_000 / plain_spent, "samples/s of one core")]
        with Store(folder / "texts", texts=tokenizer()) as store:
            for samples in [20_000] if options.short else options.samples:
                spent = index_all(mesh, store, begin, samples)
                gc.collect()
                size = f"{samples / 1e6:g} M"
                stored = sum(path.stat().st_size for path in store.folder.iterdir())
                rows += [
                    Row(f"{size}: indexed", (samples - begin) / spent, "samples/s of one core", goal=20_000),
                    less(f"{size}: store", stored / samples, "bytes/sample"),
                    *answers(store.folder, samples),
                    less(f"{size}: memory", memory_mib(), "MiB", 500),
                ]
                report("console", "the console's index, in processor time", rows, options)
                begin = samples


if __name__ == "__main__":
    main()
