"""What people would pick instead: TRL's ``GRPOTrainer`` beside the demo, on its model, tasks and figures, in one run.

TRL is a loop in one process: ``generate`` of transformers, rewards, updates. Its environment is its own, made from
``requirements/peers.lock``, in ``.cache/peers``. Both begin with the weights of the same seed and train with 64 tasks
of 16 samples and 8 updates a step, the same rate of learning, clipping and entropy bonus; tasks come in another order.
Both are begun as a user would, and timed from the command on: TRL with as many threads as torch chooses, or
``--threads``, the mesh as the demo is. Where other work keeps the cores busy, TRL's threads spend most of their time
waiting for each other: one does better there, and is what the mesh's processes have. Training alone is compared twice:
by the clock in these runs, which for the mesh is fetching, choosing and training; and in seconds of the processor with
one thread each, Megatron's engine over random samples of the same shape, TRL over its own; so is drawing a step's
samples, by vLLM with its front end and nothing around it. What vLLM and Megatron take together is the floor under the
mesh: two cores do no step in less than half of it.

It is not among the benchmarks that CI runs in their short form: it installs packages that nothing else needs.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks._options import parser
from benchmarks._report import Row, report
from benchmarks._workload import DEMO
from benchmarks.training import make_groups, seconds
from workers.demo.model import make_model
from workers.demo.settings import GROUP_SIZE, LEARNING_RATE
from workers.demo.subjects import BATCH_SIZE, COPY, MAX_STEPS

ROOT: Final = Path(__file__).parents[1]
GOAL: Final = 0.9
"""Mean reward of a batch that both are timed to."""
LIMIT_S: Final = 3600.0
"""Of a demo, on a machine that is busy."""
ONE_THREAD_STEPS: Final = 6


def environment() -> Path:
    """Return the Python of TRL's environment, which is made where it is not there."""
    subprocess.run([ROOT / "tools" / "tool_env.sh", "peers"], cwd=ROOT, check=True)  # noqa: S603 - our own script
    python = ROOT / ".cache" / "peers" / "bin" / "python"
    # Once, so that its bytecode is kept: set-up has done the same for ours.
    subprocess.run([python, "-c", "from trl import GRPOTrainer"], env=_environment(), check=True)  # noqa: S603 - the same
    return python


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}


def run_trl(python: Path, folder: Path, seed: int, **figures: float | None) -> tuple[float, list[dict[str, float]]]:
    """Return when the command was given, and what there is of each step."""
    folder.mkdir()
    model, out = make_model(folder / "model", seed), folder / "steps.jsonl"
    values = {
        "seed": seed, "tasks": BATCH_SIZE, "samples": GROUP_SIZE, "mini_batches": DEMO.updates,
        "max_tokens": COPY.max_tokens, "learning_rate": LEARNING_RATE, "entropy_coef": COPY.entropy_coef,
        "warmup_steps": 3, "adam_beta2": 0.99, "steps": MAX_STEPS, "steps_after": 2, "goal": GOAL, "threads": None,
        **figures,
    }  # fmt: skip
    tasks = ROOT / "workers" / "demo" / "tasks" / "train.jsonl"
    script = Path(__file__).parent / "_peers" / "trl_demo.py"
    command: list[str | Path] = [
        python, script, "--model", model, "--tasks", tasks, "--figures", json.dumps(values), "--out", out
    ]  # fmt: skip
    began = time.time()
    subprocess.run(command, env=_environment(), check=True)  # noqa: S603 - our own command line
    return began, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def run_mesh(folder: Path, seed: int) -> tuple[float, list[dict[str, float]]]:
    """Return the same of the demo."""
    command = [sys.executable, "-m", "workers.cli.app", "demo", "--seed", str(seed), "--run-dir", str(folder)]
    command += ["--limit", str(LIMIT_S)]
    began = time.time()
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - our own command line
    steps: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["steps"]
    return began, [
        {"rewarded_at": step["rewarded_at"], "reward": step["reward"], "train_s": step["train_s"]} for step in steps
    ]


def engine_cpu_s(folder: Path) -> float:
    """Return the seconds of the processor that a step of Megatron's engine takes, with one thread."""
    import torch

    from trinity_bus.config import TrainerSettings
    from trinity_bus.training.megatron_engine import MegatronEngine

    torch.set_num_threads(1)
    settings = TrainerSettings(
        model_path=str(make_model(folder, 0)), dtype="float32", max_tokens=COPY.max_tokens, threads=1,
        mini_batches=DEMO.updates, learning_rate=LEARNING_RATE, entropy_coef=COPY.entropy_coef, adam_beta2=0.99,
    )  # fmt: skip
    engine, groups = MegatronEngine(settings), make_groups(DEMO)
    engine.train_step(groups)
    found = statistics.median(
        seconds(time.process_time, lambda: engine.train_step(groups)) for _ in range(DEMO.repeats)
    )
    engine.leave()
    return found


def vllm_cpu_s(folder: Path) -> float:
    """Return the seconds of the processor that vLLM takes for drawing a step's samples, with one thread."""
    command = [sys.executable, "-m", "benchmarks._peers.vllm_demo", "--model", str(make_model(folder, 0))]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command line
    return float(json.loads(told.stdout.splitlines()[-1]))


def of_run(name: str, began: float, steps: list[dict[str, float]]) -> tuple[list[Row], float, float]:
    """Return the rows of a run, the seconds of its steps, and of the training in them."""
    above = next((i for i, step in enumerate(steps) if step["reward"] >= GOAL), None)
    if above is None:
        raise SystemExit(f"{name} has not reached a reward of {GOAL} in {len(steps)} steps")
    times = [step["rewarded_at"] for step in steps]
    period = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
    training = statistics.median(step["train_s"] for step in steps)
    return [
        Row(f"{name}: command to first reward", times[0] - began, "s", better="lower"),
        Row(f"{name}: command to reward 0.9", times[above] - began, "s", better="lower"),
        Row(f"{name}: steps to reward 0.9", above + 1, "", better="lower"),
        Row(f"{name}: a step", period, "s", better="lower"),
        Row(f"{name}: the training in it", training, "s", better="lower"),
    ], period, training  # fmt: skip


def main() -> None:
    """Run both, then report."""
    arguments = parser(__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--threads", type=int, help="of TRL; default: torch's choice")
    options = arguments.parse_args()
    python = environment()
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as scratch:
        folder = Path(scratch)
        began, steps = run_trl(python, folder / "trl", options.seed, threads=options.threads)
        theirs, their_step, their_training = of_run("TRL", began, steps)
        ours, our_step, our_training = of_run("mesh", *run_mesh(folder / "mesh", options.seed))
        if options.threads != 1:
            _, steps = run_trl(python, folder / "one", options.seed, threads=1, steps=ONE_THREAD_STEPS)
        their_cpu = statistics.median(step["train_cpu_s"] for step in steps)
        their_drawing = statistics.median(step["generate_cpu_s"] for step in steps)
        our_drawing = vllm_cpu_s(folder / "vllm")
        our_cpu = engine_cpu_s(folder / "engine")
    rows = [
        *theirs,
        *ours,
        Row("a step: TRL over mesh", their_step / our_step, "x"),
        Row("the training in a step: TRL over mesh", their_training / our_training, "x", goal=1.0),
        Row("TRL: training on a step's samples, one thread", their_cpu, "CPU s", better="lower"),
        Row("engine: training on a step's samples, one thread", our_cpu, "CPU s", better="lower"),
        Row("the same: TRL over engine", their_cpu / our_cpu, "x", goal=1.0),
        Row("TRL: drawing a step's samples, one thread", their_drawing, "CPU s", better="lower"),
        Row("vLLM and its front end: drawing a step's samples", our_drawing, "CPU s", better="lower"),
    ]
    threads = f"{options.threads} of TRL's threads" if options.threads else "TRL's threads as torch chooses"
    report("peers", f"TRL and the mesh on the demo, seed {options.seed}, {threads}", rows, options)


if __name__ == "__main__":
    main()
