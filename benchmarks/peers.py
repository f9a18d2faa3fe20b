"""What people would pick instead: TRL's ``GRPOTrainer`` beside the demo, on its model, tasks and figures, in one run.

TRL is a loop in one process: ``generate`` of transformers, rewards, updates. Its environment is its own, made from
``requirements/peers.lock``, in ``.cache/peers``. Both begin with the same weights and train with the demo's samples,
updates, rate of learning, clipping and entropy bonus; tasks come in another order. With SmolLM2, which learns sums,
micro-batches of both have as many tokens; the toy's are all of an update.

Both are begun as a user would, and timed from the command on: TRL with as many threads as torch chooses, or
``--threads``, the mesh as the demo is. Where other work keeps the cores busy, TRL's threads spend most of their time
waiting for each other: one does better there, and is what the toy's processes have.

A step is from the rewards of one batch to those of the next: by the clock, and in seconds of the processor, of TRL's
process and of all of the mesh's, the broker and the console too. Memory is the most that all processes of either held
at one moment. Training alone is compared twice: by the clock in these runs, which for the mesh is fetching, choosing
and training; and in seconds of the processor, Megatron's engine over the very samples that TRL has drawn, both with as
many threads as the demo's trainer has.

It is not among the benchmarks that CI runs in their short form: it installs packages that nothing else needs.
"""

import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks._demos import ROOT, Watch, run_demo, watched
from benchmarks._options import REAL, TOY, parser, subjects_of
from benchmarks._records import groups_of
from benchmarks._report import Row, less, report
from benchmarks.training import seconds
from schemas.experience import Rollout
from trinity_bus.config import KafkaSettings, TrainerSettings
from workers.demo.model import make_model
from workers.demo.settings import mesh_settings
from workers.demo.subjects import COPY, SUMS, DemoOptions, DemoSubject

GOAL: Final = 0.9
LIMIT_S: Final = 3600.0
STEPS: Final = 5
FEW_STEPS: Final = 6
"""Of TRL with another number of threads."""
MICRO_BATCH: Final = 16
SUM_TOKENS: Final = 35
"""Of a prompt of the sums, in SmolLM2's tokens."""
STEP_CLOCK, STEP_CPU, MEMORY = "a step: mesh over TRL", "a step, CPU: mesh over TRL", "peak memory: mesh over TRL"
TRAINING, SAME = "the training in a step: mesh over TRL", "training on the same samples: engine over TRL"
LEARNED: Final = "held-out prompts answered after as many samples: mesh less TRL"
GOALS: Final = {
    TOY: {TRAINING: 1.0, SAME: 1.0},
    REAL: {STEP_CLOCK: 0.5, STEP_CPU: 0.45, MEMORY: 1.1, SAME: 0.9, LEARNED: 0.0},
}


@dataclass(frozen=True, slots=True)
class Ran:
    name: str
    watch: Watch
    steps: Sequence[Mapping[str, Any]]
    """When each batch was rewarded, in Unix seconds, its mean reward, and how long training on it took."""
    exact: float
    """Share of the held-out prompts that are answered exactly in the end."""

    @property
    def step_s(self) -> float:
        times = [step["rewarded_at"] for step in self.steps]
        return float(statistics.median(later - earlier for earlier, later in itertools.pairwise(times)))

    @property
    def step_cpu_s(self) -> float:
        """Mean seconds of the processor of a step, of all processes."""
        first, last = (self.steps[at]["rewarded_at"] for at in (0, -1))
        return (self.watch.cpu_s(last) - self.watch.cpu_s(first)) / (len(self.steps) - 1)

    @property
    def training_s(self) -> float:
        return float(statistics.median(step["train_s"] for step in self.steps))

    def rows(self, goal: float | None) -> list[Row]:
        first = self.steps[0]["rewarded_at"] - self.watch.began
        found = [less(f"{self.name}: command to first reward", first, "s")]
        if goal is not None:
            above = next((i for i, step in enumerate(self.steps) if step["reward"] >= goal), None)
            if above is None:
                raise SystemExit(f"{self.name} has not reached a reward of {goal} in {len(self.steps)} steps")
            until = self.steps[above]["rewarded_at"] - self.watch.began
            found.append(less(f"{self.name}: command to reward {goal:g}", until, "s"))
            found.append(less(f"{self.name}: steps to reward {goal:g}", above + 1, ""))
        return [
            *found,
            less(f"{self.name}: a step", self.step_s, "s"),
            less(f"{self.name}: a step, of the processor", self.step_cpu_s, "CPU s"),
            less(f"{self.name}: the training in it", self.training_s, "s"),
            less(f"{self.name}: peak memory", self.watch.peak_bytes / 2**20, "MiB"),
            Row(f"{self.name}: reward of the last batch", self.steps[-1]["reward"], ""),
            Row(f"{self.name}: held-out prompts answered exactly", self.exact, ""),
        ]


def environment() -> Path:
    subprocess.run([ROOT / "tools" / "tool_env.sh", "peers"], cwd=ROOT, check=True)  # noqa: S603 - our own script
    python = ROOT / ".cache" / "peers" / "bin" / "python"
    # Once, so that its bytecode is kept: set-up has done the same for ours.
    subprocess.run([python, "-c", "from trl import GRPOTrainer"], env={**os.environ, **OFFLINE}, check=True)  # noqa: S603 - the same
    return python


OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}


class Match:
    def __init__(self, model: Path | None, folder: Path, seed: int, steps: int) -> None:
        self.taught: DemoSubject = COPY if model is None else SUMS
        self.seed, self.folder, self.real = seed, folder, model is not None
        self.model = make_model(folder / "model", seed) if model is None else model
        self.goal = GOAL if model is None else None
        self.steps = self.taught.steps if model is None else steps
        options = DemoOptions(run_dir=folder, subject=self.taught, seed=seed, steps=self.taught.steps)
        self.settings: dict[str, Any] = mesh_settings(options, KafkaSettings())

    @property
    def micro_batch_tokens(self) -> int:
        return MICRO_BATCH * (SUM_TOKENS + self.taught.max_tokens)

    @property
    def adapters(self) -> dict[str, Any]:
        return {"lora_rank": self.settings.get("trainer.lora_rank", 0), "lora_alpha": TrainerSettings().lora_alpha}

    def trl(self, python: Path, name: str, **figures: float | None) -> Ran:
        out, tasks = self.folder / f"{name}.jsonl", ROOT / "workers" / "demo" / "tasks"
        asked = self.settings
        updates = asked["trainer.mini_batches"]
        samples = asked["coordinator.batch_size"] * asked["coordinator.group_size"]
        values = {
            "seed": self.seed, "samples": asked["coordinator.group_size"], "generated": samples,
            "mini_batches": updates, "micro_batch": MICRO_BATCH if self.real else samples // updates,
            "max_tokens": self.taught.max_tokens, "temperature": asked.get("explorer.temperature", 1.0),
            "learning_rate": asked["trainer.learning_rate"], "entropy_coef": self.taught.entropy_coef,
            "warmup_steps": asked["trainer.warmup_steps"], "adam_beta2": asked["trainer.adam_beta2"],
            "decay_steps": asked["trainer.decay_steps"], "steps": self.steps, "steps_after": 2, "goal": self.goal,
            "threads": None, **self.adapters, "bfloat16": asked.get("mesh.dtype") == "bfloat16", **figures
        }  # fmt: skip
        command: list[str | Path] = [
            python, Path(__file__).parent / "_peers" / "trl_demo.py", "--model", self.model, "--out", out,
            "--tasks", tasks / f"{self.taught.tasks}train.jsonl",
            "--held-out", tasks / f"{self.taught.tasks}held_out.jsonl", "--figures", json.dumps(values)
        ]  # fmt: skip
        watch = watched(command, "TRL", OFFLINE, memory=True)
        *steps, last = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        return Ran("TRL", watch, steps, last["exact"])

    def mesh(self) -> Ran:
        options = ["--seed", str(self.seed), "--limit", str(LIMIT_S)]
        told = {}
        if self.real:
            options += ["--steps", str(self.steps)]
            told["TRINITY_BUS_TRAINER__MICRO_BATCH_TOKENS"] = str(self.micro_batch_tokens)
        summary, watch = run_demo(*options, subject=self.taught.name, environment=told, memory=True)
        return Ran("mesh", watch, summary["steps"], summary["exact_after"])

    def engine_cpu_s(self, steps: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the seconds of the processor that Megatron's engine takes for steps on samples that TRL has drawn."""
        import torch

        from trinity_bus.training.engines.megatron_engine import MegatronEngine

        names = ("threads", "mini_batches", "learning_rate", "entropy_coef", "adam_beta2")
        told = {name: self.settings[f"trainer.{name}"] for name in names}
        if self.real:
            told |= {"micro_batch_tokens": self.micro_batch_tokens, **self.adapters}
        torch.set_num_threads(told["threads"])
        engine = MegatronEngine(
            TrainerSettings(model_path=str(self.model), dtype="float32", max_tokens=self.taught.max_tokens, **told)
        )
        spent = []
        for step in steps:
            rollouts = [
                Rollout(
                    prompt_token_ids=one["prompt"],
                    response_token_ids=one["response"],
                    # Of no policy: they weigh the loss, and cost nothing.
                    logprobs=np.full(len(one["response"]), -1.0, np.float32),
                    reward=one["reward"],
                )
                for one in step["samples"]
            ]
            groups = groups_of(list(itertools.batched(rollouts, self.settings["coordinator.group_size"])))
            spent.append(seconds(time.process_time, lambda groups=groups: engine.train_step(groups)))  # type: ignore[misc]  # defaults of a lambda
        engine.leave()
        return spent


def compare(match: Match, python: Path, threads: int | None, *, whole: bool) -> list[Row]:
    theirs, ours = match.trl(python, "trl", threads=threads), match.mesh()
    goals = GOALS[REAL if match.real else TOY]
    rows = [
        *theirs.rows(match.goal),
        *ours.rows(match.goal),
        _ratio(STEP_CLOCK, ours.step_s, theirs.step_s, goals),
        _ratio(STEP_CPU, ours.step_cpu_s, theirs.step_cpu_s, goals),
        _ratio(TRAINING, ours.training_s, theirs.training_s, goals),
        _ratio(MEMORY, ours.watch.peak_bytes, theirs.watch.peak_bytes, goals),
        Row(LEARNED, ours.exact - theirs.exact, "", goals.get(LEARNED)),
    ]
    if not whole:
        return rows
    alike, steps = match.settings["trainer.threads"], theirs.steps
    if (threads or os.cpu_count()) != alike:
        steps = match.trl(python, "alike", threads=alike, steps=FEW_STEPS).steps
    # The first step of each makes memory.
    their_cpu = statistics.median(step["train_cpu_s"] for step in steps[1:])
    our_cpu = statistics.median(match.engine_cpu_s(steps)[1:])
    same = f"training on a step's samples, {'one thread' if alike == 1 else f'{alike} threads'}"
    rows += [
        less(f"TRL: {same}", their_cpu, "CPU s"),
        less(f"engine: {same}", our_cpu, "CPU s"),
        _ratio(SAME, our_cpu, their_cpu, goals),
    ]
    return rows


def _ratio(metric: str, ours: float, theirs: float, goals: Mapping[str, float]) -> Row:
    return less(metric, ours / theirs, "", goals.get(metric))


def over_seeds(found: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the medians of the seeds' rows, of what was learned the mean; what is measured once is of the first."""
    of = {row.metric: [row.value] for row in found[0]}
    for row in itertools.chain.from_iterable(found[1:]):
        of[row.metric].append(row.value)
    middle = {metric: (statistics.fmean if metric == LEARNED else statistics.median)(of[metric]) for metric in of}
    return [replace(row, value=middle[row.metric]) for row in found[0]]


def main() -> None:
    arguments = parser(__doc__, subjects=True)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0])
    arguments.add_argument("--steps", type=int, default=STEPS, help="of SmolLM2, 2 or more")
    arguments.add_argument("--threads", type=int, help="of TRL; default: torch's choice")
    options = arguments.parse_args()
    subjects, python = subjects_of(options), environment()
    threads = f"{options.threads} of TRL's threads" if options.threads else "TRL's threads as torch chooses"
    for subject, model in subjects.items():
        found = []
        for seed in options.seeds:
            with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
                match = Match(model, Path(folder), seed, options.steps)
                found.append(compare(match, python, options.threads, whole=seed == options.seeds[0]))
        title = f"TRL and the mesh on the demo {match.taught.name}, seeds {options.seeds}, {threads}"
        report("peers", title, over_seeds(found), options, subject=subject)


if __name__ == "__main__":
    main()
