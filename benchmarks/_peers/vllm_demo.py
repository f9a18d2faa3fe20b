"""vLLM by itself on the demo's tasks: prints the seconds of the processor that drawing the samples of a step takes.

It is the engine as an explorer has it, and its front end; no explorer around it, no runner, no log. Both count.
"""

import argparse
import asyncio
import gc
import itertools
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Final

import psutil

from schemas import Sampling
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.runtime.heap import freeze_gc
from workers.demo.model import DIGITS, MAX_LENGTH
from workers.demo.settings import GROUP_SIZE
from workers.demo.subjects import BATCH_SIZE, COPY

ROUNDS: Final = 8
BEFORE: Final = 2
"""Rounds that do not count."""


def prompts() -> list[list[int]]:
    """Return those of a step, as token ids."""
    text = (Path(__file__).parents[2] / "workers" / "demo" / "tasks" / "train.jsonl").read_text(encoding="utf-8")
    words = [json.loads(line)["prompt"].split() for line in text.splitlines()[:BATCH_SIZE]]
    return [[DIGITS.vocabulary.index(word) for word in ("<bos>", *prompt)] for prompt in words]


async def measure(model: Path) -> float:
    """Return the median of the rounds."""
    engine = InferenceEngine(
        ExplorerSettings(
            name="explorer-0",
            model_path=str(model),
            dtype="float32",
            max_model_len=MAX_LENGTH,
            max_tokens=COPY.max_tokens,
            slots=BATCH_SIZE,
            max_num_seqs=BATCH_SIZE * GROUP_SIZE,
            cpu_kvcache_gib=0.5,
            seed=0,
        )
    )
    await engine.start()
    core = psutil.Process(multiprocessing.active_children()[0].pid)
    freeze_gc()
    seeds, asked, found = itertools.count(1), prompts(), list[float]()

    def spent() -> float:
        times = core.cpu_times()
        return time.process_time() + times.user + times.system

    try:
        for _ in range(BEFORE + ROUNDS):
            began = spent()
            await asyncio.gather(
                *(engine.generate(prompt, Sampling(seed=next(seeds) * GROUP_SIZE), GROUP_SIZE) for prompt in asked)
            )
            found.append(spent() - began)
    finally:
        await engine.stop()
        # What is left of vLLM would complain at the interpreter's end.
        gc.collect()
    return statistics.median(found[BEFORE:])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    print(json.dumps(asyncio.run(measure(parser.parse_args().model))))


if __name__ == "__main__":
    main()
