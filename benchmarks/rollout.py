"""Rollouts: what the explorer costs over the bare engine, and what conversations of many turns cost.

One process holds the engine and the explorer around it, another runs its workflows; this one holds a real broker and
plays coordinator and trainer: dispatch records in, experiences and results out. Rounds with and without the explorer
take turns on the same engine, so that both see the same machine. "Bare" is vLLM's ``AsyncLLM`` asked for the same token
ids with the same sampling; as many requests at once, nothing decoded, nothing rewarded, nothing published. Neither has
a seed, as an explorer has none by default: vLLM draws for each request that has one by itself, which is its own price.

Beside long responses that are written to the log while they are drawn stand the same ones that are not, in turns.

Of SmolLM2, of which a decoding step takes long, only these two are measured, with fewer tokens and prompts in flight.

Conversations are of one run each. Their time in the mesh is that of a turn in its runner, without the engine's. At the
end the explorer's process is killed amid conversations, and another goes on with them.

What a version costs those that are amid their responses is how much longer they take than the same ones that no version
comes to, in turns: for the pause, and with ``explorer.caches=recomputed`` for all their keys and values once more.
"""

import asyncio
import multiprocessing
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import uvloop
from safetensors.torch import load_file

from benchmarks._children import Side
from benchmarks._cluster import cluster_to_measure, make_topics
from benchmarks._options import parser, subjects_of
from benchmarks._records import announce
from benchmarks._report import Row, less, report
from benchmarks._rollout_explorer import TELL, Bare, Told, Writes, explorer_side
from benchmarks._rollout_turns import EARLY, LATE, around, prompt_length
from benchmarks._tiny_model import TINY, make_tiny_qwen3
from schemas import Dispatch, ExplorerHeartbeat, ModelVersion, Position, RolloutFinished, Sampling, Task, WeightsSynced
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS, ROLLOUTS
from trinity_bus.bus import Bus, Producer, Reader, lane_partition
from trinity_bus.chat import Tokenizer
from trinity_bus.chat.encoding import encoder_of, load_tokenizer
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.weights.pull.server import WeightServer

NAME = "explorer-0"
TASKS, GROUP, PROMPT, RESPONSE = 96, 8, 16, 64
SHORT_TASKS = 4
ROUNDS = 4
GOAL = 0.97
IN_FLIGHT = {1: 440, 16: 220, 64: 110}
"""Attempts at once, and tokens of each of their responses: one alone has nothing to hide what is beside the engine."""
REAL_IN_FLIGHT = {1: 24, 16: 16}
"""The same of SmolLM2."""
MAX_LEN = 512
LONG = 460
"""Tokens of a long response: more than are lost with an explorer by default."""
TURNS, DRAWN = 16, 16
MANY_TURNS, FEW_DRAWN = LATE, 2
LIMIT_S = 120.0


def prompts(tasks: int) -> list[list[int]]:
    return [[3 + (task * 31 + i * 7) % 500 for i in range(PROMPT)] for task in range(tasks)]


def explorer_settings(model: str) -> ExplorerSettings:
    return ExplorerSettings(
        name=NAME, model_path=model, dtype="float32", max_model_len=PROMPT + RESPONSE, slots=TASKS, max_tokens=RESPONSE
    )


def order_of(task: Task, incarnation: str, *, repeat_times: int = 1, **more: Any) -> Dispatch:
    return Dispatch(
        explorer=NAME,
        incarnation=incarnation,
        task=task,
        batch_id="benchmark",
        batch_type="train",
        repeat_times=repeat_times,
        timeout_s=LIMIT_S,
        **{"attempt": 1, **more},
    )


async def answered(
    producer: Producer, events: Reader, orders: Iterable[Dispatch], in_flight: int
) -> tuple[list[RolloutFinished], float]:
    """Hand orders to their explorer, so many at once; their results, and the seconds from the first to the last."""
    began = time.perf_counter()
    waiting = iter(orders)
    open_orders = 0
    results: list[RolloutFinished] = []

    async def hand_out(count: int) -> int:
        handed = 0
        for order, _ in zip(waiting, range(count), strict=False):
            await producer.send(ROLLOUTS, NAME, order, partition=lane_partition(NAME))
            handed += 1
        return handed

    open_orders += await hand_out(in_flight)
    while open_orders:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, RolloutFinished):
                assert received.record.status == "completed", received.record.error
                assert received.record.experience is not None
                results.append(received.record)
                open_orders += await hand_out(1) - 1
    return results, time.perf_counter() - began


def announced_version(
    publisher: WeightServer, explorer_incarnation: str, model: Path, *, epoch: int, version: int
) -> ModelVersion:
    checksum = publisher.stage(version, load_file(model / "model.safetensors").items())
    return announce(version, checksum, publisher.address, "gloo", NAME, epoch=epoch, incarnation=explorer_incarnation)


async def serve_weights(
    producer: Producer, events: Reader, explorer_incarnation: str, model: Path, *, epoch: int
) -> None:
    publisher = WeightServer(method="gloo")
    announced = announced_version(publisher, explorer_incarnation, model, epoch=epoch, version=0)
    await producer.send(MODEL_VERSIONS, announced.model, announced)
    publisher.admit(announced)
    synced = False
    while not synced:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, WeightsSynced):
                assert received.record.ok, received.record.error
                synced = True
    publisher.close()


async def incarnation(events: Reader) -> str:
    while True:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, ExplorerHeartbeat):
                return received.record.incarnation


def conversations(count: int, turns: int, drawn: int, *, keep: bool, name: str) -> list[Task]:
    return [
        Task(
            task_id=f"{name}/{i}",
            workflow="bench-turns",
            data={"prompt": prompt, "turns": turns, "keep": keep},
            sampling=Sampling(max_tokens=drawn, ignore_eos=True),
        )
        for i, prompt in enumerate(prompts(count))
    ]


@dataclass(slots=True)
class Bench:
    """One explorer's process, and the log."""

    side: Side
    drawn: "Synchronized[int]"
    """Tokens, by its engine."""
    start_s: float
    producer: Producer
    events: Reader
    short: bool
    tokenizer: Tokenizer | None = None
    known: str = ""
    """The incarnation before, which may be heard late."""
    incarnation: str = ""

    async def join(self, model: Path, epoch: int) -> None:
        while self.incarnation in ("", self.known):
            self.incarnation = await incarnation(self.events)
        await serve_weights(self.producer, self.events, self.incarnation, model, epoch=epoch)

    def texts(self, count: int) -> list[str]:
        if self.tokenizer is None:
            return [" ".join(f"t{t}" for t in prompt) for prompt in prompts(count)]
        return [f"What do you know of the numbers {i} and {3 * i}, and of their sum?" for i in range(count)]

    def orders(self, texts: list[str], tokens: int, name: str) -> list[Dispatch]:
        how = Sampling(max_tokens=tokens, ignore_eos=True)
        tasks = [
            Task(task_id=f"{name}/{i}", workflow="math", prompt=text, answer="t9", sampling=how)
            for i, text in enumerate(texts)
        ]
        return [order_of(task, self.incarnation, repeat_times=GROUP) for task in tasks]

    async def written_over_not(self, rounds: int) -> tuple[Row, str]:
        """Compare the seconds of long responses that are not written with those of the same that are, in each round."""
        texts = self.texts(1 if self.short else SHORT_TASKS)
        ratios = []
        for number in range(rounds + 1):
            took = {}
            for writes in (number % 2 == 0, number % 2 == 1):
                await self.side.tell(Writes(writes))
                orders = self.orders(texts, LONG, f"written-{writes}/{number}")
                took[writes] = (await answered(self.producer, self.events, orders, len(orders)))[1]
            if number or self.short:
                ratios.append(took[False] / took[True])
        await self.side.tell(Writes(True))
        row = Row("long responses that are written over those that are not", statistics.median(ratios), "", 0.99)
        return row, f"ratios, written or not: {', '.join(f'{ratio:.3f}' for ratio in ratios)}"

    async def speeds(self, in_flight: int, tokens: int, rounds: int) -> list[tuple[float, float]]:
        """Tokens per second of the bare engine and through the explorer, in each round."""
        count = in_flight if self.short or in_flight > 1 else 4
        asked, texts = prompts(count), self.texts(count)
        if self.tokenizer is not None:
            asked = [list(encoder_of(self.tokenizer).prompt(text)) for text in texts]
        found = []
        for number in range(rounds + 1):
            drawn, seconds = await self.side.tell(Bare(asked, GROUP, in_flight, tokens))
            orders = self.orders(texts, tokens, f"{tokens}/{number}")
            results, took = await answered(self.producer, self.events, orders, in_flight)
            # The first round of each warms up.
            if number or self.short:
                found.append((drawn / seconds, sum(one.response_tokens for one in results) / took))
        return found

    async def over_bare(self, in_flight: dict[int, int], rounds: int) -> tuple[list[Row], list[str]]:
        rows, notes = [], []
        for count, tokens in in_flight.items():
            found = await self.speeds(min(count, SHORT_TASKS) if self.short else count, tokens, rounds)
            ratios = [ours / theirs for theirs, ours in found]
            rows.append(Row(f"explorer over bare engine, {count} in flight", statistics.median(ratios), "", GOAL))
            rows.append(Row(f"explorer, {count} in flight", statistics.median(o for _, o in found), "tokens/s"))
            notes.append(f"ratios, {count} in flight: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
        return rows, notes

    async def talk(self, tasks: list[Task]) -> tuple[list[RolloutFinished], float]:
        orders = [order_of(task, self.incarnation) for task in tasks]
        return await answered(self.producer, self.events, orders, len(orders))

    async def kept_over_not(self, rounds: int) -> list[float]:
        """Seconds of conversations that are not kept over those of some that are, in each round."""
        count, turns = (2, 2) if self.short else (TURNS, TURNS)
        ratios = []
        for number in range(rounds + 1):
            took = {}
            for keep in (number % 2 == 0, number % 2 == 1):
                tasks = conversations(count, turns, DRAWN, keep=keep, name=f"keep-{keep}/{number}")
                took[keep] = (await self.talk(tasks))[1]
            if number or self.short:
                ratios.append(took[False] / took[True])
        return ratios

    async def many_turns(self) -> tuple[float, float]:
        """Share of the blocks found in the prefix cache that turns share; time in the mesh, late over early."""
        before: Told = await self.side.tell(TELL)
        count = 1 if self.short else 8
        shared = 0
        metrics: dict[int, list[float]] = {EARLY: [], LATE: []}
        # One after the other: nothing waits for anything else.
        for task in conversations(count, MANY_TURNS, FEW_DRAWN, keep=True, name="many"):
            (result,), _ = await self.talk([task])
            for at, seconds in metrics.items():
                seconds.append(float(result.metrics[0][f"turn_{at}_s"]))
            # What the last token drawn would have given is not computed before the next turn.
            shared += sum(
                (prompt_length(PROMPT, FEW_DRAWN, turn) + FEW_DRAWN - 1) // before.block
                for turn in range(1, MANY_TURNS)
            )
        after: Told = await self.side.tell(TELL)
        in_mesh = {}
        for at, seconds in metrics.items():
            lengths = [prompt_length(PROMPT, FEW_DRAWN, turn) for turn in around(at)]
            engine = statistics.fmean(one for length in lengths for one in after.spent[length][-count:])
            in_mesh[at] = statistics.fmean(seconds) - engine
        return (after.cached - before.cached) / before.block / shared, in_mesh[LATE] / in_mesh[EARLY]

    async def amid_a_version(self, model: Path, version: int | None, name: str) -> float:
        """Return the seconds of some responses, to half of which a version comes; None: none does."""
        tasks, tokens = (1 if self.short else SHORT_TASKS), IN_FLIGHT[16]
        prompt = [" ".join(f"t{t}" for t in tokens_of) for tokens_of in prompts(tasks)]
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        publisher, announced = WeightServer(method="gloo"), None
        if version is not None:
            announced = announced_version(publisher, self.incarnation, model, epoch=100 + version, version=version)
        half, began, open_orders = self.drawn.value + tasks * GROUP * tokens // 2, time.perf_counter(), tasks
        for number in range(tasks):
            own = {"task_id": f"{name}/{number}", "prompt": prompt[number]}
            task = Task(workflow="math", answer="t9", sampling=sampling, **own)
            order = order_of(task, self.incarnation, repeat_times=GROUP)
            await self.producer.send(ROLLOUTS, NAME, order, partition=lane_partition(NAME))
        while announced is not None and self.drawn.value < half:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.001)
        waits_for = set() if announced is None else {WeightsSynced}
        if announced is not None:
            await self.producer.send(MODEL_VERSIONS, announced.model, announced)
            publisher.admit(announced)
        took = 0.0
        while open_orders or waits_for:
            for received in await self.events.batch(LIMIT_S):
                waits_for.discard(type(received.record))
                if isinstance(received.record, RolloutFinished):
                    assert received.record.status == "completed", received.record.error
                    open_orders -= 1
                    took = time.perf_counter() - began
        publisher.close()
        return took

    async def over_versions(self, model: Path, rounds: int) -> float:
        """Return by how many milliseconds responses take longer because a version comes amid them, the median."""
        longer = []
        for number in range(rounds + 1):
            without = await self.amid_a_version(model, None, f"without/{number}")
            amid = await self.amid_a_version(model, number + 1, f"amid/{number}")
            if number or self.short:
                longer.append(1000 * (amid - without))
        return statistics.median(longer)

    async def until_half(self, tasks: list[Task]) -> tuple[set[str], dict[str, Position]]:
        """Begin conversations, and return once half is drawn: which have ended, and where the turns of others begin."""
        # Conversations that began together turn together: the moment is any within a turn, not the end of one.
        half = self.drawn.value + len(tasks) * TURNS * DRAWN // 2 + secrets.randbelow(len(tasks) * DRAWN)
        for task in tasks:
            order = order_of(task, self.incarnation)
            await self.producer.send(ROLLOUTS, NAME, order, partition=lane_partition(NAME))
        ended: set[str] = set()
        begun: dict[str, Position] = {}
        while self.drawn.value < half:
            for received in await self.events.batch(0.01):
                if isinstance(received.record, RolloutFinished):
                    ended.add(received.record.task_id)
                elif isinstance(received.record, ExplorerHeartbeat):
                    begun |= {one.task_id: one.turns for one in received.record.running if one.turns is not None}
        return ended, begun


@asynccontextmanager
async def explored(settings: Settings, model: Path, epoch: int, **of_bench: Any) -> AsyncIterator[Bench]:
    """Provide an explorer in a process of its own, with weights; it ends by itself, unless it was killed."""
    drawn = multiprocessing.get_context("spawn").Value("q", 0)
    side = Side(explorer_side, settings, drawn)
    try:
        bench = Bench(side, drawn, start_s=await asyncio.to_thread(side.pipe.recv), **of_bench)
        await bench.join(model, epoch)
        yield bench
        if side.process.is_alive():
            side.pipe.send(None)
            await asyncio.to_thread(side.process.join)
    finally:
        side.end()


async def measure(settings: Settings, model: Path, rounds: int, *, short: bool) -> tuple[list[Row], list[str]]:
    tasks = conversations(2 if short else TURNS, TURNS, DRAWN, keep=True, name="killed")
    kept_caches = settings.model_copy(update={"explorer": settings.explorer.model_copy(update={"caches": "kept"})})
    async with (
        Bus(settings.kafka, client_id="benchmark") as bus,
        bus.producer() as producer,
        bus.reader(EXPLORER_EVENTS, start="end") as events,
    ):
        own: dict[str, Any] = {"producer": producer, "events": events, "short": short}
        async with explored(settings, model, 1, **own) as bench:
            rows, notes = await bench.over_bare(IN_FLIGHT, rounds)
            written, told = await bench.written_over_not(2 * rounds)
            kept = await bench.kept_over_not(rounds)
            hits, growth = await bench.many_turns()
            before = bench.drawn.value
            ended, begun = await bench.until_half(tasks)
            bench.side.end()
            total = bench.drawn.value - before
        async with explored(settings, model, 2, known=bench.incarnation, **own) as again:
            rest = [task for task in tasks if task.task_id not in ended]
            orders = [order_of(task, again.incarnation, attempt=2, turns=begun.get(task.task_id)) for task in rest]
            await answered(producer, events, orders, len(orders))
            total += again.drawn.value
            longer = {"recomputed": await again.over_versions(model, 2 * rounds)}
        async with explored(kept_caches, model, 3, known=again.incarnation, **own) as third:
            longer["kept"] = await third.over_versions(model, 2 * rounds)
    needed = len(tasks) * TURNS * DRAWN
    rows += [
        written,
        Row("conversations that are kept over those that are not", statistics.median(kept), "", 0.95),
        Row("blocks found in the prefix cache over those shared", hits, "", 0.9),
        less(f"time in the mesh per turn, turn {LATE} over turn {EARLY}", growth, "", 1.5),
        less("tokens drawn twice after a SIGKILL", 100 * (total - needed) / needed, "%", 5.0),
        *(
            less(f"responses in flight over a version, caches {caches}: longer by", value, "ms")
            for caches, value in longer.items()
        ),
        less("start of engine and runners", bench.start_s, "s"),
    ]
    notes.append(told)
    notes.append(f"ratios, kept or not: {', '.join(f'{ratio:.3f}' for ratio in kept)}")
    return rows, notes


async def measure_real(settings: Settings, model: Path, rounds: int, *, short: bool) -> tuple[list[Row], list[str]]:
    async with (
        Bus(settings.kafka, client_id="benchmark") as bus,
        bus.producer() as producer,
        bus.reader(EXPLORER_EVENTS, start="end") as events,
    ):
        tokenizer = load_tokenizer(str(model))
        own: dict[str, Any] = {"producer": producer, "events": events, "short": short, "tokenizer": tokenizer}
        async with explored(settings, model, 1, **own) as bench:
            rows, notes = await bench.over_bare(REAL_IN_FLIGHT, rounds)
            written, told = await bench.written_over_not(rounds)
    notes.append(told)
    return [*rows, written, less("start of engine and runners", bench.start_s, "s")], notes


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    rounds = 0 if options.short else ROUNDS
    for subject, folder in subjects_of(options).items():
        with cluster_to_measure() as cluster:
            kafka = cluster.unused()
            model = folder or make_tiny_qwen3(cluster.folder / "model", seed=0, shape=TINY)
            uvloop.run(make_topics(kafka))
            own = explorer_settings(str(model)).model_copy(
                update={"max_model_len": MAX_LEN, "workflow_modules": "benchmarks._rollout_turns"}
            )
            measuring = measure if folder is None else measure_real
            rows, notes = uvloop.run(measuring(Settings(kafka=kafka, explorer=own), model, rounds, short=options.short))
        what = f"; {TURNS} conversations of {TURNS} turns x {DRAWN} tokens; 0.6 M parameters" if folder is None else ""
        title = f"{subject}, groups of {GROUP}{what}, on a CPU"
        report("rollout", title, rows, options, subject=subject, notes=notes)


if __name__ == "__main__":
    main()
