"""The table "How fast" of ``README.md``: figures of ``benchmarks/results``, each compared with a peer or a limit.

``python -m tools.render_speed`` writes it into the page, between its two marks; with ``--check`` it says whether the
page is current and exits with 1 where it is not.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.generated import write_or_check_part

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "README.md"
RESULTS: Final = ROOT / "benchmarks" / "results"

type Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table.

    Attributes:
        subject: What is measured.
        benchmark: It is repeated by ``make bench NAME=`` this, without ``_smollm2``.
        metrics: Names of its rows, whose values ``here`` and ``beside`` are given, in this order.
        here: Text for the measurement of Trinity Bus.
        beside: Text for its peer or limit.
    """

    subject: str
    benchmark: str
    metrics: Sequence[str]
    here: Callable[[Values], str]
    beside: Callable[[Values], str]


COMPARISONS: Final = (
    Comparison(
        "SmolLM2 learns sums: a whole step, of rollouts, training and weights",
        "peers_smollm2",
        ("mesh: a step", "mesh: a step, of the processor", "TRL: a step", "TRL: a step, of the processor"),
        lambda v: f"{v[0]:.1f} s, {v[1]:.0f} CPU s",
        lambda v: f"TRL in one process: {v[2]:.1f} s, {v[3]:.0f} CPU s",
    ),
    Comparison(
        "the same: peak memory, all services together",
        "peers_smollm2",
        ("mesh: peak memory", "TRL: peak memory"),
        lambda v: f"{v[0] / 1024:.1f} GiB",
        lambda v: f"TRL's process: {v[1] / 1024:.1f} GiB",
    ),
    Comparison(
        "the same: held-out sums answered after as many samples",
        "peers_smollm2",
        ("mesh: held-out prompts answered exactly", "TRL: held-out prompts answered exactly"),
        lambda v: f"{v[0]:.0%}",
        lambda v: f"TRL: {v[1]:.0%}",
    ),
    Comparison(
        "SmolLM2: a training step, one thread",
        "training_smollm2",
        ("SmolLM2: Megatron's engine", "SmolLM2: plain engine"),
        lambda v: f"{v[0]:.1f} CPU s",
        lambda v: f"transformers' model and a plain loop: {v[1]:.1f}",
    ),
    Comparison(
        "SmolLM2: explorer, 1 / 16 prompts in flight",
        "rollout_smollm2",
        tuple(f"explorer over bare engine, {n} in flight" for n in (1, 16)),
        lambda v: " / ".join(f"{ratio:.2f}" for ratio in v),
        lambda _: "bare vLLM: 1",
    ),
    Comparison(
        "SmolLM2: from a step until the explorer serves its weights / pause of rollouts",
        "weight_sync_smollm2",
        tuple(f"SmolLM2, nccl, 1 explorer: {what}" for what in ("step done to all serving", "pause", "transfer")),
        lambda v: f"{v[0]:.1f} s / {1000 * v[1]:.1f} ms",
        lambda v: f"the transfer: {1000 * v[2]:.0f} ms",
    ),
    Comparison(
        "SmolLM2's demo: first reward warm / cold",
        "start_smollm2",
        ("warm: first reward", "cold: first reward"),
        lambda v: f"{v[0]:.1f} / {v[1]:.1f} s",
        lambda _: "limit: 60, warm",
    ),
    Comparison(
        "experiences, encoded / decoded",
        "codec",
        (
            "encode, codec",
            "decode, codec",
            "encode speed over the fastest baseline",
            "decode speed over the fastest baseline",
        ),
        lambda v: f"{v[0]:,.0f} / {v[1]:,.0f} Mtokens/s",
        lambda v: f"fastest of pickle + safetensors, msgspec and JSON: {v[0] / v[2]:,.0f} / {v[1] / v[3]:,.0f}",
    ),
    Comparison(
        "experiences through Kafka, durable",
        "bus",
        ("durable end to end", "same transport, a pickled dict of lists a sample"),
        lambda v: f"{v[0]:.1f} Mtokens/s",
        lambda v: f"pickled lists over the same transport: {v[1]:.1f}",
    ),
    Comparison(
        "tasks scheduled, one explorer, 512 in flight",
        "scheduling",
        ("1 explorer, 512 under way: end to end",),
        lambda v: f"{v[0]:,.0f} tasks/s",
        lambda _: "Trinity-RFT's scheduler on Ray, measured earlier: 160",
    ),
    *(
        Comparison(
            f"coordinator of {fleet}: core when idle / at 2,500 tasks/s",
            "fleet",
            tuple(
                f"{fleet}: {row}"
                for row in (
                    "idle: share of a core",
                    "at 2500 tasks/s: share of a core",
                    "free slot to order committed, p99",
                    "all join: longest decision",
                    "all take a version: longest decision",
                    "two versions in a row: longest decision",
                    "tasks fill the slots: longest decision",
                    "at 2500 tasks/s: longest decision",
                    "one of a hundred is killed: longest decision",
                )
            ),
            lambda v: f"{v[0]:.2f} / {v[1]:.2f}; dispatch p99 {v[2]:.0f} ms; longest decision {max(v[3:]):.0f} ms",
            lambda _: "limits: 0.5 / 1; decision 100 ms; simulated time, no broker",
        )
        for fleet in ("1,000 explorers of 64 slots", "4,000 explorers of 64 slots", "10,000 explorers of 8 slots")
    ),
    Comparison(
        "trajectories lost in 15 crashes",
        "scheduling",
        (
            "15 crashes, 5,952 trajectories: trajectory-seconds lost per crash",
            "computed for the same: trajectory-seconds lost per crash, buffer in memory",
            "computed for the same: trajectory-seconds lost per crash, saved at checkpoints",
        ),
        lambda v: f"{v[0]:.0f} s of work",
        lambda v: f"buffer in memory: {v[1]:.0f} s; saved at checkpoints: {v[2]:.0f} s (computed)",
    ),
    Comparison(
        "explorer, 1 / 16 / 64 prompts in flight",
        "rollout",
        tuple(f"explorer over bare engine, {n} in flight" for n in (1, 16, 64)),
        lambda v: " / ".join(f"{ratio:.2f}" for ratio in v),
        lambda _: "bare vLLM, 0.6 M parameters: 1",
    ),
    Comparison(
        "gateway: requests/s, latency added",
        "gateway",
        ("gateway", "bare vLLM server", "added latency, p50", "latency of the bare server, p50"),
        lambda v: f"{v[0]:.1f}/s, {v[2]:.1f} ms",
        lambda v: f"bare vLLM server: {v[1]:.1f}/s, {v[3]:.0f} ms",
    ),
    Comparison(
        "weight sync to 4 / 16 explorers by `memory`, relative to one",
        "fan_out",
        tuple(f"200 Mbit/s, {n} members: over the time for one" for n in (4, 16)),
        lambda v: f"{v[0]:.2f} / {v[1]:.2f}",
        lambda _: "one after another, computed: 4 / 16",
    ),
    Comparison(
        "weight sync to 16 by `memory`, one killed during it: time of the others",
        "fan_out",
        tuple(
            f"200 Mbit/s, 16 members, one killed: the others have it, over nobody killed, {which}"
            for which in ("median", "worst")
        ),
        lambda v: f"{v[0]:.2f}, worst {v[1]:.2f}",
        lambda _: "none killed: 1; limit: 1.1",
    ),
    Comparison(
        "pause of rollouts for 150 M parameters",
        "weight_sync",
        ("150M, nccl, 1 explorer: pause", "150M, nccl, 1 explorer: transfer"),
        lambda v: f"{1000 * v[0]:.1f} ms",
        lambda v: f"the transfer: {1000 * v[1]:.0f} ms",
    ),
    Comparison(
        "training on a step's samples: alone, one thread / in a step, wall time",
        "peers",
        (
            "engine: training on a step's samples, one thread",
            "mesh: the training in it",
            "TRL: training on a step's samples, one thread",
            "TRL: the training in it",
        ),
        lambda v: f"{v[0]:.2f} CPU s / {v[1]:.2f} s",
        lambda v: f"TRL: {v[2]:.2f} / {v[3]:.2f}",
    ),
    Comparison(
        "a full step: rollouts, training, weight sync",
        "peers",
        ("mesh: a step", "TRL: a step"),
        lambda v: f"{v[0]:.2f} s",
        lambda v: f"TRL in one process: {v[1]:.2f}",
    ),
    Comparison(
        "demo: first reward warm / cold, full demo",
        "start",
        ("warm: first reward", "cold: first reward", "the whole demo"),
        lambda v: f"{v[0]:.1f} / {v[1]:.1f}, {v[2]:.1f} s",
        lambda _: "limits: 25 / 45, 60",
    ),
    Comparison(
        "command to first reward / to reward 0.9",
        "peers",
        (
            "mesh: command to first reward",
            "mesh: command to reward 0.9",
            "TRL: command to first reward",
            "TRL: command to reward 0.9",
        ),
        lambda v: f"{v[0]:.1f} / {v[1]:.1f} s",
        lambda v: f"TRL in one process: {v[2]:.1f} / {v[3]:.1f}",
    ),
)


def table(results: Path = RESULTS) -> str:
    """Return the comparisons as a table of Markdown, but for those of benchmarks that have kept no figures yet.

    Raises:
        KeyError: A benchmark kept figures, and none of a name.
    """
    rows = ["| | Trinity Bus | compared with | `make bench` | measured |", "|---|---|---|---|---|"]
    missing = not_kept(results)
    for comparison in COMPARISONS:
        if comparison.benchmark in missing:
            continue
        name = comparison.benchmark.removesuffix("_smollm2")
        kept = json.loads((results / f"{comparison.benchmark}.json").read_text(encoding="utf-8"))
        figures = {row["metric"]: float(row["value"]) for row in kept["rows"] if not isinstance(row["value"], str)}
        values = tuple(figures[metric] for metric in comparison.metrics)
        rows.append(
            f"| {comparison.subject} | {comparison.here(values)} | {comparison.beside(values)} "
            f"| [`NAME={name}`](benchmarks/{name}.py) "
            f"| {kept['date']} |"
        )
    return "\n".join(rows)


def not_kept(results: Path = RESULTS) -> set[str]:
    return {each.benchmark for each in COMPARISONS if not (results / f"{each.benchmark}.json").is_file()}


def main() -> int:
    return write_or_check_part("render_speed", __doc__ or "", PAGE, "figures", table())


if __name__ == "__main__":
    sys.exit(main())
