"""The demo: how soon it gives a first reward, how long each of its stages takes, and what a step is made of.

Runs the demo as a user does, once for each seed, one after another, and reads its ``summary.json``; or reads those of
earlier runs: ``make bench NAME=demo ARGS=runs/ID/summary.json``. Whether it learns is a matter of many seeds:
``make bench NAME=demo ARGS='--seeds 0-19'``. Of several the table has medians, and the file what each seed came to.
``--subject tools`` is the demo of that name, with results of its own.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._demos import read, run_demo
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from workers.demo.subjects import COPY, SUBJECTS


def seeds_of(text: str) -> list[int]:
    """Return the seeds that ``"0,2,5-7"`` names."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def learned(summary: dict[str, Any]) -> dict[str, float]:
    return {
        "seed": summary["seed"],
        "exact": summary["exact_after"],
        "steps": len(summary["steps"]),
        "seconds": summary["total_seconds"],
    }


def of_all(summaries: Sequence[dict[str, Any]]) -> list[Row]:
    columns = zip(*map(rows, summaries), strict=True)
    exact = [summary["exact_after"] for summary in summaries]
    enough = SUBJECTS[summaries[0]["subject"]].learned
    return [
        *(replace(column[0], value=median(row.value for row in column)) for column in columns),
        Row("held-out prompts answered exactly, median", median(exact), "", enough, "higher"),
        Row("held-out prompts answered exactly, worst", min(exact), "", enough, "higher"),
        Row(f"seeds at {enough:g} or more", sum(e >= enough for e in exact), f"of {len(exact)}", len(exact)),
    ]


def rows(summary: dict[str, Any]) -> list[Row]:
    steps = summary["steps"]
    parts = {
        name: median(step[key] for step in steps if step[key] is not None)
        for name, key in (("rollouts", "rollout_s"), ("training", "train_s"), ("weights to all", "sync_s"))
    }
    period = summary["train_seconds"] / len(steps)
    found = [
        less("held-out reward before", summary["reward_before"], "", 0.3),
        Row("held-out reward after", summary["reward_after"], "", 0.9, "higher"),
        less("time to first reward", summary["time_to_first_reward_s"], "s"),
        less("everything", summary["total_seconds"], "s", SUBJECTS[summary["subject"]].limit_s),
    ]
    found += [less(f"stage: {name}", seconds, "s") for name, seconds in summary["stages"].items()]
    found += [less("steps", len(steps), ""), less("a step", period, "s")]
    found += [less(f"a step: {name}", seconds, "s") for name, seconds in parts.items()]
    # Generation and training by themselves are the baseline: what a loop in one process could not do without.
    work = parts["rollouts"] + parts["training"]
    found.append(less("a step over its rollouts and training", period / work, "x"))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("summaries", nargs="*", type=Path, help="summary.json of earlier runs")
    arguments.add_argument("--seeds", type=seeds_of, default=[0], help="such as 0,1,2 or 0-19")
    arguments.add_argument("--subject", choices=SUBJECTS, default=COPY.name, help="what is taught")
    options = arguments.parse_args()
    summaries, ended = [read(path) for path in options.summaries], []
    for seed in [] if options.summaries else options.seeds:
        try:
            asked = ("--seed", str(seed), *(("--steps", "2") if options.short else ()))
            summaries.append(run_demo(*asked, subject=options.subject)[0])
        except FileNotFoundError:
            ended.append(seed)
    if not summaries:
        sys.exit("no run came to its end")
    each = [learned(summary) for summary in summaries]
    notes = ["seed {seed}: {exact:.1%} exactly, {steps} steps, {seconds:.1f} s".format(**one) for one in each]
    taught = "" if options.subject == COPY.name else f" {options.subject}"
    title = (
        f"The demo{taught}, {summaries[0]['explorers']} explorers, seeds {', '.join(str(one['seed']) for one in each)}"
    )
    report(f"demo{taught.replace(' ', '_')}", title, of_all(summaries), options, notes=notes, more={"seeds": each})
    if ended:
        sys.exit(f"not in these figures, since they did not come to their end: seeds {ended}")


if __name__ == "__main__":
    main()
