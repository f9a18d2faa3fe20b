"""What a train step costs: Megatron's engine over the plain one, two data-parallel ranks over one, and publishing.

Both engines are given the same weights, batches and settings, and must arrive at the same loss. ``TorchEngine`` is what
one would write by hand: transformers' model, padded batches, ``log_softmax`` and ``gather``, AdamW. One thread, whose
CPU time is what the step would take on a machine that does nothing else; the two are timed in turns, and the medians
compared. Two ranks are compared with one by the clock, in steps a second and each with one thread: that needs two idle
cores, and a step that is long beside what the two say to each other; the same is asked of each size.

* demo: the shape of the demo's model and batch: 0.3 M parameters, 64 groups of 16 short samples, 8 updates;
* equal: 15 M parameters, 4 groups of 4 samples of 192 tokens; nothing is padded on either side;
* ragged: the same with 16 to 368 tokens; the plain engine pads, Megatron's packs;
* SmolLM2: 135 M parameters, 4 groups of 8 samples of 48 to 72 tokens, one rank; and what publishing their version
  costs: how long a step waits for the copy of a checkpoint, how much longer the step beside its files takes, and how
  long a step waits for a staged version; by the clock.

Of the demo's workload, whose steps are the shortest, a replay's steps are timed too, from the log: records and
experiences fetched and checked, its own records written, figures appended. The engine alone makes the same steps before
and after each replay.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks._options import parser, subjects_of
from benchmarks._records import groups_of
from benchmarks._replay import replaying
from benchmarks._report import Row, less, report
from benchmarks._tiny_model import TinyShape, make_tiny_qwen3
from benchmarks._workload import DEMO, SMOLLM2, Workload
from schemas import ExperienceGroup
from schemas.experience import Int32, Rollout
from trinity_bus.config import TrainerSettings
from trinity_bus.sizing.memory import parameters
from trinity_bus.training import checkpoint
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.families import read_shape
from trinity_bus.training.ranks.followers import ChildRanks, Followers
from trinity_bus.training.ranks.multi_rank_engine import MultiRankEngine
from trinity_bus.weights.staging import Staging

PACKING_GOAL = 1.2
SCALING_GOAL = 1.6
SAVE_GOAL = 0.05
"""Of a step, that it waits for a checkpoint."""
STAGED_GOAL = 0.1
"""Of a step, that it waits for a version that is published before it is durable."""
THREADS = 1
LEARNING_RATE = 1e-4


WORKLOADS = (
    DEMO,
    Workload(
        name="equal", vocabulary=4096, hidden=384, layers=8, heads=6, head_dim=64, groups=4, group_size=4, prompt=64,
        lengths=(192, 192), updates=1, micro_batch_tokens=1536, repeats=5
    ),
    Workload(
        name="ragged", vocabulary=4096, hidden=384, layers=8, heads=6, head_dim=64, groups=4, group_size=4, prompt=8,
        lengths=(16, 368), updates=1, micro_batch_tokens=1536, repeats=5
    )
)  # fmt: skip


def make_model(load: Workload, folder: Path) -> Path:
    shape = TinyShape(
        hidden_size=load.hidden,
        intermediate_size=load.mlp * load.hidden,
        num_hidden_layers=load.layers,
        num_attention_heads=load.heads,
        head_dim=load.head_dim,
        vocab_size=load.vocabulary,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.02,
    )
    return make_tiny_qwen3(folder, seed=0, shape=shape)


def make_groups(load: Workload, seed: int = 0) -> list[ExperienceGroup]:
    """Random samples with the logprobs of a nearly uniform policy."""
    rng = np.random.default_rng(seed)

    def sample(prompt: Int32) -> Rollout:
        length = int(rng.integers(load.lengths[0], load.lengths[1] + 1)) - load.prompt
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=rng.integers(0, load.vocabulary, length).astype(np.int32),
            logprobs=rng.normal(-np.log(load.vocabulary), 0.05, length).astype(np.float32),
            reward=rng.random(),
        )

    prompts = rng.integers(0, load.vocabulary, (load.groups, load.prompt)).astype(np.int32)
    return groups_of([[sample(prompt) for _ in range(load.group_size)] for prompt in prompts])


def settings_of(load: Workload, folder: Path, **layout: int) -> TrainerSettings:
    return TrainerSettings(
        model_path=str(folder),
        learning_rate=LEARNING_RATE,
        mini_batches=load.updates,
        micro_batch_tokens=load.micro_batch_tokens,
        threads=THREADS,
        **layout,
    )


def seconds(clock: Callable[[], float], function: Callable[[], object]) -> float:
    began = clock()
    function()
    return clock() - began


def one_rank(load: Workload, folder: Path, groups: Sequence[ExperienceGroup], repeats: int) -> tuple[list[Row], float]:
    """Time both engines, in turns; the rows, and the wall seconds of Megatron's step."""
    engine, plain = MegatronEngine(settings_of(load, folder)), TorchEngine(settings_of(load, folder))
    losses = [each.train_step(groups)["loss"] for each in (engine, plain)]
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        ours = seconds(time.process_time, lambda: engine.train_step(groups))
        wall = time.perf_counter() - began
        timings.append((ours, seconds(time.process_time, lambda: plain.train_step(groups)), wall))
    ours, theirs, wall = (statistics.median(column) for column in zip(*timings, strict=True))
    engine.leave()
    tokens = sum(len(group.tokens) for group in groups)
    compared = (
        Row(f"{load.name}: packed over padded tokens/s", theirs / ours, "", goal=PACKING_GOAL)
        if load.ragged
        else less(f"{load.name}: Megatron over plain", ours / theirs, "", load.overhead_goal)
    )
    return [
        less(f"{load.name}: Megatron's engine", ours, "CPU s"),
        less(f"{load.name}: plain engine", theirs, "CPU s"),
        compared,
        Row(f"{load.name}: throughput", tokens / ours, "tokens/CPU s"),
    ], wall


def two_ranks(load: Workload, folder: Path, groups: Sequence[ExperienceGroup], repeats: int) -> float:
    """Return the wall seconds of a step of two data-parallel ranks."""
    followers = Followers(2, ChildRanks())
    engine = MultiRankEngine(settings_of(load, folder, data_parallel=2), followers)
    try:
        engine.train_step(groups)
        return statistics.median(seconds(time.perf_counter, lambda: engine.train_step(groups)) for _ in range(repeats))
    finally:
        engine.leave()


def publishing(load: Workload, folder: Path, groups: Sequence[ExperienceGroup], repeats: int) -> list[Row]:
    """Time what a step waits for when its version is saved, and when it is staged."""
    engine, staging = MegatronEngine(settings_of(load, folder)), Staging(bucket_bytes=16 << 20, retain=2)
    alone, waits, beside, staged = [], [], [], []
    with tempfile.TemporaryDirectory() as directory:

        def stage() -> None:
            staging.stage(engine.progress.version, engine.hf_tensors())
            checkpoint.note_told(Path(directory), engine.progress)

        def step() -> float:
            return seconds(time.perf_counter, lambda: engine.train_step(groups))

        step()
        for _ in range(repeats):
            alone.append(step())
            began = time.perf_counter()
            written = engine.save_checkpoint(Path(directory), engine.progress)
            waits.append(time.perf_counter() - began)
            beside.append(step())
            written.result()
            staged.append(seconds(time.perf_counter, stage))
    engine.leave()
    a_step, a_save, a_staging = (statistics.median(column) for column in (alone, waits, staged))
    return [
        less(f"{load.name}: a step", a_step, "s"),
        less(f"{load.name}: the copy of a checkpoint", a_save, "s"),
        less(f"{load.name}: a save blocks, of a step", a_save / a_step, "", SAVE_GOAL),
        less(f"{load.name}: the step beside its files over one alone", statistics.median(beside) / a_step, ""),
        less(f"{load.name}: staging a version", a_staging, "s"),
        less(f"{load.name}: a staged publication, of a step", a_staging / a_step, "", STAGED_GOAL),
    ]


def measure(load: Workload, folder: Path, repeats: int) -> list[Row]:
    make_model(load, folder)
    groups = make_groups(load)
    rows, wall = one_rank(load, folder, groups, repeats)
    together = two_ranks(load, folder, groups, repeats)
    size, tokens = parameters(read_shape(folder)) / 1e6, sum(len(group.tokens) for group in groups)
    what = f"{load.name}: steps/s of two data-parallel ranks over one's, {size:.2g} M parameters, {tokens:,} tokens"
    return [*rows, Row(what, wall / together, "", goal=SCALING_GOAL)]


def toys(*, short: bool) -> list[Row]:
    rows = []
    for load in WORKLOADS[:1] if short else WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(load, Path(folder), 1 if short else load.repeats)
            if load is DEMO:
                settings = settings_of(load, Path(folder))
                steps, turns = (3, 1) if short else (load.repeats, 3)
                rows += replaying(load.name, settings, make_groups(load), steps=steps, turns=turns)
                if short:
                    rows += publishing(load, Path(folder), make_groups(load), 1)
    return rows


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    torch.set_num_threads(THREADS)
    for subject, folder in subjects_of(options).items():
        if folder is None:
            rows = toys(short=options.short)
        else:
            groups, repeats = make_groups(SMOLLM2)[: SMOLLM2.groups // 2], 1 if options.short else SMOLLM2.repeats
            rows = one_rank(SMOLLM2, folder, groups, repeats)[0] + publishing(SMOLLM2, folder, groups, repeats)
        title = f"GRPO steps of the engines on a CPU, {subject}, float32, one thread for each rank"
        report("training", title, rows, options, subject=subject)


if __name__ == "__main__":
    main()
