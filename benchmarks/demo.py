"""The demo: how soon it gives a first reward, how long each of its stages takes, and what a step is made of.

Runs the demo once, as a user does, and reads its ``summary.json``; or reads that of an earlier run:
``make bench NAME=demo ARGS=runs/ID/summary.json``.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._options import parser
from benchmarks._report import Row, report

LIMIT_S = 300.0
"""The demo's own limit on two cores, after set-up."""


def run_demo(seed: int, *, short: bool) -> dict[str, Any]:
    """Run the demo in a folder that is thrown away; its output is shown."""
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "workers.cli.app", "demo", "--seed", str(seed), "--run-dir", str(run_dir)]
        if short:
            command += ["--steps", "2"]
        subprocess.run(command, check=True)  # noqa: S603 - our own command line
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return summary


def rows(summary: dict[str, Any]) -> list[Row]:
    """Return the figures of one run."""
    steps = summary["steps"]
    parts = {
        name: median(step[key] for step in steps if step[key] is not None)
        for name, key in (("rollouts", "rollout_s"), ("training", "train_s"), ("weights to all", "sync_s"))
    }
    period = summary["train_seconds"] / len(steps)
    found = [
        Row("held-out reward before", summary["reward_before"], "", 0.3, "lower"),
        Row("held-out reward after", summary["reward_after"], "", 0.9, "higher"),
        Row("time to first reward", summary["time_to_first_reward_s"], "s", None, "lower"),
        Row("everything", summary["total_seconds"], "s", LIMIT_S, "lower"),
    ]
    found += [Row(f"stage: {name}", seconds, "s", None, "lower") for name, seconds in summary["stages"].items()]
    found += [Row("steps", len(steps), "", None, "lower"), Row("a step", period, "s", None, "lower")]
    found += [Row(f"a step: {name}", seconds, "s", None, "lower") for name, seconds in parts.items()]
    # Generation and training by themselves are the baseline: what a loop in one process could not do without.
    work = parts["rollouts"] + parts["training"]
    found.append(Row("a step over its rollouts and training", period / work, "x", None, "lower"))
    return found


def main() -> None:
    """Run or read, then report."""
    arguments = parser(__doc__)
    arguments.add_argument("summary", nargs="?", type=Path, help="summary.json of an earlier run")
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    if options.summary is None:
        summary = run_demo(options.seed, short=options.short)
    else:
        summary = json.loads(options.summary.read_text(encoding="utf-8"))
    title = f"The demo, seed {summary['seed']}, {summary['explorers']} explorers, {len(summary['steps'])} steps"
    report("demo", title, rows(summary), options)


if __name__ == "__main__":
    main()
