"""Kept tokens: what it costs that samples of top-p are trained as they were drawn, in the engine and in a step.

The engine draws the same responses in turns, asked from which tokens each was drawn or not; all of them with top-p, and
half of them, beside others without a limit: these are the neighbours, who are told nothing and are in the same batch.
What top-p itself costs is beside it. A step is of each training engine, with random sets beside the same samples
without; its CPU time is compared, of one thread. The median of the rounds' ratios counts.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks._options import parser, subjects_of
from benchmarks._records import groups_of
from benchmarks._report import Row, less, report
from benchmarks._tiny_model import SMALL, make_tiny_qwen3
from schemas import ExperienceGroup, Sampling
from schemas.experience import Int32, Rollout
from schemas.groups.kept import KeptTokens, decode_kept, encode_kept
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, TrainerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.families import read_shape

ENGINE_GOAL = 0.9
STEP_GOAL = 1.1
PROMPTS, GROUP, PROMPT, RESPONSE = 4, 8, 16, 48
ROUNDS = 7
TOP_P = 0.95
KEPT = 200
"""Of a token in a step, on average: what SmolLM2 has with this top-p."""

type Way = tuple[Sampling, bool]  # and whether it is told from which tokens each was drawn


def way(*, limited: bool, told: bool = False) -> Way:
    return Sampling(temperature=1.0, top_p=TOP_P if limited else None, max_tokens=RESPONSE, ignore_eos=True), told


async def drawn(engine: InferenceEngine, ways: Sequence[Way], vocabulary: int) -> tuple[float, list[Completion]]:
    """Draw a group of each prompt, the prompts with these ways in turn; the seconds of all, and the responses."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, vocabulary, (PROMPTS, PROMPT)).tolist()
    began = time.perf_counter()
    asked = [
        engine.generate(prompt, sampling, GROUP, trained=told)
        for prompt, (sampling, told) in zip(prompts, [*ways] * PROMPTS, strict=False)
    ]
    found = await asyncio.gather(*asked)
    return time.perf_counter() - began, [one for group in found for one in group]


async def of_engine(folder: Path, rounds: int) -> list[Row]:
    engine = InferenceEngine(
        ExplorerSettings(
            model_path=str(folder), dtype="float32", max_model_len=PROMPT + RESPONSE + 1, max_num_seqs=PROMPTS * GROUP
        )
    )
    await engine.start()
    vocabulary = read_shape(folder).vocabulary
    whole, limited, told = way(limited=False), way(limited=True), way(limited=True, told=True)
    mixes = {"whole": [whole], "not": [limited], "told": [told], "beside": [limited, whole], "asked": [told, whole]}
    spent: dict[str, list[float]] = {name: [] for name in mixes}
    counts: list[float] = []
    sizes: list[float] = []
    for number in range(rounds + 1):
        for name, ways in mixes.items():
            seconds, responses = await drawn(engine, ways, vocabulary)
            # The first round warms up.
            if number or rounds == 1:
                spent[name].append(seconds)
            if name == "told":
                known = [(one.kept, len(one.token_ids)) for one in responses if one.kept is not None]
                assert known, "of some tokens it is known"
                found = [decode_kept(kept, tokens).counts for kept, tokens in known]
                counts += [float(each[each > 0].mean()) for each in found]
                sizes += [len(kept) / tokens for kept, tokens in known]
    await engine.stop()

    def over(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))

    tokens = PROMPTS * GROUP * RESPONSE
    return [
        Row("engine, with kept tokens", tokens / statistics.median(spent["told"]), "tokens/s"),
        Row("engine, told over not told, all with top-p", over("not", "told"), "", ENGINE_GOAL),
        Row("engine, told over not told, beside as many without a limit", over("beside", "asked"), "", ENGINE_GOAL),
        Row("engine, top-p and not told, over no limit", over("whole", "not"), ""),
        less("kept tokens of a token", statistics.fmean(counts), ""),
        less("record, more for a token", statistics.fmean(sizes), "bytes"),
    ]


def groups_to_train(vocabulary: int, groups: int) -> tuple[list[ExperienceGroup], list[ExperienceGroup]]:
    """Random samples with random sets, and the same without."""
    rng = np.random.default_rng(0)

    def sample(prompt: Int32) -> Rollout:
        response = rng.integers(0, vocabulary, RESPONSE).astype(np.int32)
        sets = [np.unique([token, *rng.integers(0, vocabulary, rng.integers(1, 2 * KEPT))]) for token in response]
        counts = np.array([*map(len, sets)])
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=response,
            logprobs=-np.log(counts).astype(np.float32),
            reward=rng.random(),
            sampling=Sampling(temperature=1.0, top_p=TOP_P),
            kept=encode_kept(KeptTokens(counts, np.concatenate(sets))),
        )

    prompts = rng.integers(0, vocabulary, (groups, PROMPT)).astype(np.int32)
    made = [[sample(prompt) for _ in range(GROUP)] for prompt in prompts]
    plain = Sampling(temperature=1.0)
    return groups_of(made), groups_of([[replace(one, kept=None, sampling=plain) for one in group] for group in made])


def of_steps(folder: Path, rounds: int, groups: int) -> list[Row]:
    told, plain = groups_to_train(read_shape(folder).vocabulary, groups)
    settings = TrainerSettings(model_path=str(folder), learning_rate=1e-6, micro_batch_tokens=1024, threads=1)
    engines: dict[str, TrainingEngine] = {"Megatron's": MegatronEngine(settings), "the torch": TorchEngine(settings)}
    rows = []
    for name, engine in engines.items():
        ratios: list[float] = []
        for number in range(rounds + 1):
            spent = []
            for given in (told, plain):
                began = time.process_time()
                metrics = engine.train_step(given)
                spent.append(time.process_time() - began)
                assert metrics["samples_trained"] == groups * GROUP
            if number or rounds == 1:
                ratios.append(spent[0] / spent[1])
        engine.leave()
        what = f"a step of {name} engine, with kept tokens over without"
        rows.append(less(what, statistics.median(ratios), "", STEP_GOAL))
    return rows


def measure(folder: Path, *, short: bool) -> list[Row]:
    rounds = 1 if short else ROUNDS
    return [*asyncio.run(of_engine(folder, rounds)), *of_steps(folder, min(rounds, 3), 1 if short else PROMPTS)]


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    torch.set_num_threads(1)
    for subject, found in subjects_of(options).items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = make_tiny_qwen3(Path(temporary) / "toy", seed=0, shape=SMALL) if found is None else found
            rows = measure(folder, short=options.short)
        title = f"Top-p trained as it was drawn, on a CPU, {subject}, float32"
        report("kept_tokens", title, rows, options, subject=subject)


if __name__ == "__main__":
    main()
