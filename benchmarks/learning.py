"""Whether each objective learns: the demo's model and tasks, the trainer's engine, and a plain sampler, in one process.

Three seeds each; a run has learned when the mean reward of a batch is over 0.9, within 60 steps. What is drawn comes of
transformers' model with the engine's weights, so there is no broker and no staleness: what is left is the objective.
Figures are the demo's (``workers/demo/settings.py``), its rate of learning included, but for what ``OBJECTIVES`` says.
A run ends when it has stayed above 0.97 for three steps. The teacher of distillation is what GRPO has made of seed 0.
Without ``--short`` the curves go to ``docs/images/learning.svg``.
"""

import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks._options import parser
from benchmarks._records import groups_of
from benchmarks._report import Row, less, report
from schemas.experience import ExperienceGroup, Float32, Rollout
from schemas.task import Task
from trinity_bus.config import TrainerSettings
from trinity_bus.rollout.rewards import sequence_reward
from workers.demo.curriculum import load_tasks, train_stream
from workers.demo.model import BOS, DIGITS, EOS, PAD, UNKNOWN, make_model
from workers.demo.settings import GROUP_SIZE, LEARNING_RATE
from workers.demo.subjects import BATCH_SIZE, COPY

PLOT: Final = Path(__file__).parents[1] / "docs" / "images" / "learning.svg"
GOAL: Final = 0.9
DONE: Final = 0.97
DONE_STEPS: Final = 3
SEEDS: Final = 3
TAUGHT: Final = "distillation"
OBJECTIVES: Final[dict[str, dict[str, Any]]] = {
    "GRPO": {},
    "RLOO": {"advantage": "rloo"},
    "REINFORCE++": {"advantage": "reinforce_plus_plus"},
    "PPO with a critic": {"advantage": "gae", "critic_learning_rate": 1e-3, "critic_warmup_steps": 1},
    "GSPO": {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
    "CISPO": {"loss": "cispo", "clip_high": 4.0, "learning_rate": 3e-4},
    TAUGHT: {"advantage": "distillation"},
}
STEPS: Final = 60
_ID: Final = {word: i for i, word in enumerate(DIGITS.vocabulary)}
_SILENT: Final = {_ID[word] for word in (PAD, BOS, EOS, UNKNOWN)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    steps: int = STEPS
    tasks: int = BATCH_SIZE
    samples: int = GROUP_SIZE


class Sampler:
    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._network: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        self._network.eval()

    def _logits(self, tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self._network(input_ids=tokens, **cache).logits
        return logits

    def take(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self._network.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors:
                parameters[name].copy_(tensor)

    def draw(
        self, prompts: Sequence[Sequence[int]], samples: int, lots: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``samples`` responses to each prompt, [prompts * samples, tokens], and their log-probabilities."""
        from transformers.cache_utils import DynamicCache

        cache: dict[str, Any] = {"past_key_values": DynamicCache(), "use_cache": True}
        logits = self._logits(torch.tensor(prompts), **cache)[:, -1].repeat_interleave(samples, 0)
        cache["past_key_values"].batch_repeat_interleave(samples)
        tokens, logprobs = [], []
        for _ in range(COPY.max_tokens):
            logp = logits.log_softmax(-1)
            tokens.append(torch.multinomial(logp.exp(), 1, generator=lots))
            logprobs.append(logp.gather(1, tokens[-1]))
            logits = self._logits(tokens[-1], **cache)[:, -1]
        return torch.cat(tokens, 1), torch.cat(logprobs, 1)

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each token of the responses, of which each prompt has equally many."""
        asked = torch.tensor(prompts).repeat_interleave(len(responses) // len(prompts), 0)
        logits = self._logits(torch.cat([asked, responses], 1))[:, asked.shape[1] - 1 : -1]
        return logits.log_softmax(-1).gather(2, responses[:, :, None])[:, :, 0]


def batch(
    tasks: Sequence[Task],
    sampler: Sampler,
    teacher: Sampler | None,
    *,
    samples: int,
    version: int,
    lots: torch.Generator,
) -> list[ExperienceGroup]:
    prompts = [[_ID[BOS], *(_ID[word] for word in str(task.prompt).split())] for task in tasks]
    tokens, logprobs = sampler.draw(prompts, samples, lots)
    taught = None if teacher is None else teacher.logprobs(prompts, tokens).numpy()
    drawn, told = tokens.numpy(), logprobs.numpy()
    rollouts = [
        [
            _rollout(task, prompts[i], drawn[row], told[row], None if taught is None else taught[row])
            for row in range(i * samples, (i + 1) * samples)
        ]
        for i, task in enumerate(tasks)
    ]
    return groups_of(rollouts, version)


def _rollout(
    task: Task, prompt: Sequence[int], tokens: np.ndarray[Any, Any], logprobs: Float32, taught: Float32 | None
) -> Rollout:
    ends = np.flatnonzero(tokens == _ID[EOS])
    length = int(ends[0]) + 1 if len(ends) else len(tokens)
    said = " ".join(DIGITS.vocabulary[token] for token in tokens[:length].tolist() if token not in _SILENT)
    return Rollout(
        prompt_token_ids=prompt,
        response_token_ids=tokens[:length].astype(np.int32),
        logprobs=logprobs[:length],
        reward=sequence_reward(said, str(task.answer), ended=bool(len(ends))),
        teacher_logprobs=None if taught is None else taught[:length],
    )


def learn(
    objective: str, seed: int, size: Size, teacher: Path | None = None, export: Path | None = None
) -> list[float]:
    from trinity_bus.training.engines.megatron_engine import MegatronEngine  # seconds, in the processes that run

    torch.set_num_threads(1)
    lots = torch.Generator().manual_seed(seed)
    rewards: list[float] = []
    stream = train_stream(load_tasks(COPY, "train"), seed)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), seed)
        figures: dict[str, Any] = {
            "model_path": str(model), "dtype": "float32", "max_tokens": COPY.max_tokens, "threads": 1, "seed": seed,
            "learning_rate": LEARNING_RATE, "warmup_steps": 3, "decay_steps": STEPS, "entropy_coef": COPY.entropy_coef,
            "mini_batches": 8, "adam_beta2": 0.99
        }  # fmt: skip
        engine = MegatronEngine(TrainerSettings(**{**figures, **OBJECTIVES[objective]}))
        sampler, taught_by = Sampler(model), None if teacher is None else Sampler(teacher)
        for step in range(size.steps):
            sampler.take(engine.hf_tensors())
            groups = batch(
                list(islice(stream, size.tasks)), sampler, taught_by, samples=size.samples, version=step, lots=lots
            )
            rewards.append(float(np.concatenate([group.rewards for group in groups]).mean()))
            if min(rewards[-DONE_STEPS:]) >= DONE and len(rewards) >= DONE_STEPS:
                break
            engine.train_step(groups)
        if export is not None:
            engine.export_hf(export)
        engine.leave()
    return rewards


def curves(objectives: Sequence[str], seeds: int, size: Size, folder: Path) -> dict[str, list[list[float]]]:
    teacher = folder / "teacher"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        first = pool.submit(learn, "GRPO", 0, size, export=teacher)
        runs = {("GRPO", 0): first}
        for seed in range(seeds):
            for objective in objectives:
                if (objective, seed) == ("GRPO", 0):
                    continue
                if objective == TAUGHT:
                    first.result()
                runs[objective, seed] = pool.submit(
                    learn, objective, seed, size, teacher if objective == TAUGHT else None
                )
        found: dict[str, list[list[float]]] = {objective: [] for objective in objectives}
        for (objective, seed), run in runs.items():
            rewards = run.result()
            found[objective].append(rewards)
            print(f"{objective}, seed {seed}: " + " ".join(f"{reward:.2f}" for reward in rewards), flush=True)
    return found


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "learning"  # the same figures give the same file
    figure, panels = plt.subplots(2, 4, figsize=(12, 5), sharex=True, sharey=True)
    for panel in panels.flat[len(found) :]:
        panel.set_visible(False)
    for panel, (objective, runs) in zip(panels.flat, found.items(), strict=False):
        for rewards in runs:
            panel.plot(range(len(rewards)), rewards, linewidth=1)
        panel.axhline(GOAL, color="grey", linewidth=0.6, linestyle="--")
        panel.set(title=objective, ylim=(0, 1.02), xlabel="steps")
        panel.grid(alpha=0.3)
        panel.tick_params(labelbottom=True)
    figure.suptitle(f"Mean reward of each batch, {max(map(len, found.values()))} seeds each")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    options = parser(__doc__).parse_args()
    objectives = ["GRPO", TAUGHT] if options.short else list(OBJECTIVES)
    size = Size(steps=2, tasks=4, samples=4) if options.short else Size()
    seeds = 1 if options.short else SEEDS
    with tempfile.TemporaryDirectory() as folder:
        found = curves(objectives, seeds, size, Path(folder))
    rows = []
    for objective, runs in found.items():
        reached = (next((step for step, reward in enumerate(rewards) if reward > GOAL), None) for rewards in runs)
        known = [steps for steps in reached if steps is not None]
        rows.append(Row(f"{objective}: runs over 0.9 within {STEPS} steps", len(known), f"of {seeds}", goal=seeds))
        if known:
            rows.append(less(f"{objective}: steps to it, median", statistics.median(known), ""))
            rows.append(less(f"{objective}: steps to it, most", max(known), ""))
    if not options.short:
        plot(found, PLOT)
    report("learning", f"Objectives on the demo's model and tasks, {seeds} seeds each", rows, options)


if __name__ == "__main__":
    main()
