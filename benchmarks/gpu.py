"""Is this machine ready: each part of the mesh on its GPUs, in ten minutes, without a network.

Products of matrices; the training step in bfloat16, with its model FLOPs utilization, and with Transformer Engine;
vLLM's start, and new weights in place; its rollouts in FP8, routes of experts, and on two GPUs; a version to another
process on the same GPU by ``memory``; one over NCCL between two GPUs; the demo. Each is run in a process of its own
with a time limit, by what is installed; one that crashes or hangs costs itself alone, and one that might not end in
time is not begun (``--minutes``). What is skipped, and why, stands beside the figures. ``trinity-bus doctor`` looks at
all else: memory, ports, clock, broker.

None of this was ever run on a GPU before it was written: send the file back. ``--short`` has the same parts on a CPU.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._gpu.parts import MACHINE, PARTS, Outcome, Part, run, why_not
from benchmarks._gpu.sizes import size_for
from benchmarks._options import parser
from benchmarks._report import report
from trinity_bus.errors import TrinityError
from workers.cli.console import console

_SHORT_SLACK = 4
"""Times as much time has the short form for each part: a CPU may have others to serve."""


def arguments_of(part: Part, machine: dict[str, Any], *, short: bool) -> list[str]:
    if short:
        told = {"device": "cpu", "dtype": "float32", "size": "tiny"}
        told["method"] = "gloo" if part.method == "nccl" else part.method
    else:
        size = size_for(min(gpu["gib"] for gpu in machine["gpus"]))
        told = {"device": "cuda", "dtype": "bfloat16", "size": size, "method": part.method}
    return [word for name, value in told.items() for word in (f"--{name}", value)]


def check(parts: Sequence[Part], machine: dict[str, Any], folder: Path, options: argparse.Namespace) -> list[Outcome]:
    out, outcomes = console(), []
    ends = time.monotonic() + 60 * options.minutes
    for number, part in enumerate(parts, start=1):
        out.print(f"{number}/{len(parts)} {part.name} ...", end=" ", highlight=False)
        asked = options.parts is not None
        if options.short:
            why = "it computes on GPUs alone" if part.gpus_alone else None if asked else part.short or None
        else:
            why = why_not(part, machine) or (None if asked else too_late(part, ends - time.monotonic()))
        outcome = (
            run(
                replace(part, limit_s=part.limit_s * (_SHORT_SLACK if options.short else 1)),
                arguments_of(part, machine, short=options.short),
                folder,
            )
            if why is None
            else Outcome(name=part.name, state="skipped", why=why)
        )
        told = f"{outcome.seconds:.0f} s" if outcome.state == "ok" else f"{outcome.state}: {outcome.why}"
        lines = [told, *(f"    {line}" for line in outcome.output)]
        out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
        outcomes.append(outcome)
    return outcomes


def too_late(part: Part, left_s: float) -> str | None:
    """Return why a part is not begun any more, and what would help; None where there is time for it."""
    if part.limit_s <= left_s:
        return None
    return f"it may take {part.limit_s:g} s and {max(left_s, 0):.0f} are left: --minutes 22, or --parts {part.name}"


def look(folder: Path) -> dict[str, Any]:
    outcome = run(MACHINE, [], folder)
    if outcome.state != "ok":
        raise TrinityError("\n".join([f"cannot look at this machine: {outcome.why}", *outcome.output]))
    machine: dict[str, Any] = outcome.said[0]["machine"]
    return machine


def main() -> None:
    """Look, run, report. Ends with 1 where a part failed."""
    arguments = parser(__doc__)
    names = [part.name for part in PARTS]
    arguments.add_argument("--parts", nargs="*", choices=names, help="these alone, with --short even those left out")
    arguments.add_argument("--minutes", type=float, default=10.0, help="how long it may take (default: 10)")
    options = arguments.parse_args()
    chosen = [part for part in PARTS if options.parts is None or part.name in options.parts]
    with tempfile.TemporaryDirectory(prefix="trinity-bus-gpu-") as folder:
        machine = look(Path(folder))
        outcomes = check(chosen, machine, Path(folder), options)
    report(
        "gpu",
        "CPU, tiny" if options.short else ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU",
        [row.of(outcome.name) for outcome in outcomes for row in outcome.rows],
        options,
        notes=["trinity-bus doctor tells of memory, ports, clock, broker and rights"],
        more={
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "short": options.short,
            "machine": machine,
            "parts": {
                outcome.name: {key: getattr(outcome, key) for key in ("state", "why", "seconds", "output")}
                for outcome in outcomes
            },
        },
    )
    if any(outcome.state == "failed" for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
