"""The fuzzing itself: so many inputs, spread over all targets; what fails is saved, and can be run again.

python -m tests.support.fuzz.run --inputs 1000000
python -m tests.support.fuzz.run --replay fuzz-failures/records-1a2b3c.json
"""

import argparse
import gc
import hashlib
import json
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas import TaskResult
from tests.support.effects import written
from tests.support.fuzz.damage import damaged
from tests.support.fuzz.decoders import Target, scratch, targets
from tests.support.fuzz.mesh import Machine, Mesh, Step, settings_of

LIMIT_S = 0.1
GROWTH_BYTES = 64 << 20
"""That the process may grow by once each target has been warmed up."""
HISTORY = 500
"""Inputs that one machine is given."""
MACHINE_SHARE = 0.35
FIFTHS = 5
"""Memory is looked at so many times."""
FOLDER = Path("fuzz-failures")


@dataclass
class Failure:
    target: str
    problem: str
    inputs: list[tuple[float, str | None]]
    """Time and bytes as hex; decoders have one."""
    settings: int = 0
    """Seed of the machine's settings."""

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"target": self.target, "problem": self.problem, "inputs": self.inputs, "settings": self.settings}
        )
        name = f"{self.target.replace(' ', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        path = folder / name
        path.write_text(text)
        return path


@dataclass
class Report:
    inputs: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    answered: int = 0
    """Damaged and honest answers to orders that count, as the machine saw it."""
    slowest: dict[str, float] = field(default_factory=dict)
    resident: list[int] = field(default_factory=list)
    """Bytes of the process after each fifth of the inputs."""

    @property
    def grown(self) -> int:
        """Bytes that memory has grown by since the first fifth, in which each target was warmed up."""
        return self.resident[-1] - self.resident[0]

    @property
    def is_good(self) -> bool:
        return not self.failures and self.grown <= GROWTH_BYTES


def fuzz(count: int, seed: int, told: Callable[[Report, int], None] = lambda _report, _done: None) -> Report:
    report = Report()
    rng = random.Random(seed)  # noqa: S311 - inputs, not secrets
    with scratch() as folder:
        chosen = targets(Path(folder))
        weights = [target.weight for target in chosen]
        done = 0
        while done < count:
            if rng.random() < MACHINE_SHARE:
                done += _history(report, rng.randrange(2**32))
            else:
                for target in rng.choices(chosen, weights, k=HISTORY):
                    _one(report, target, _damaged(rng, target))
                done += HISTORY
            if done * FIFTHS >= count * (len(report.resident) + 1):
                report.resident.append(_resident())
            told(report, done)
    return report


def _damaged(rng: random.Random, target: Target) -> bytes:
    return damaged(rng, rng.choice(target.samples), target.samples)


def _one(report: Report, target: Target, value: bytes) -> None:
    report.inputs[target.name] += 1
    problem = _problem_of(report, target, value)
    if problem is not None:
        report.failures.append(Failure(target.name, problem, [(0.0, value.hex())]))


def _problem_of(report: Report, target: Target, value: bytes) -> str | None:
    seconds = LIMIT_S
    # What is slow once may have met the garbage collector, or a busy machine.
    for _ in range(5):
        began = time.thread_time()
        try:
            target.run(value)
        except target.errors:
            pass
        except Exception:  # noqa: BLE001 - this is what is looked for
            return traceback.format_exc(limit=-8)
        seconds = min(seconds, time.thread_time() - began)
        if seconds < LIMIT_S:
            break
    report.slowest[target.name] = max(report.slowest.get(target.name, 0.0), seconds)
    return f"it took {seconds:.3f} s" if seconds >= LIMIT_S else None


def _history(report: Report, seed: int) -> int:
    """One machine, and what it is given, until something is wrong."""
    mesh, machine, steps = Mesh(random.Random(seed), seed % 4 / 6), Machine(settings_of(seed)), list[Step]()  # noqa: S311 - likewise
    for _ in range(HISTORY):
        step = mesh.next()
        steps.append(step)
        report.inputs["machine"] += 1
        began = time.thread_time()
        try:
            decided = machine.take(step)
            mesh.hear(decided)
            report.answered += bool(written(decided, TaskResult))
        except Exception:  # noqa: BLE001 - this is what is looked for
            report.failures.append(_failure(traceback.format_exc(limit=-8), steps, seed))
            break
        seconds = time.thread_time() - began
        if seconds >= LIMIT_S:
            seconds = min(_again(steps, seed) for _ in range(3))
            if seconds >= LIMIT_S:
                report.failures.append(_failure(f"it took {seconds:.3f} s", steps, seed))
                break
        report.slowest["machine"] = max(report.slowest.get("machine", 0.0), seconds)
    return len(steps)


def _again(steps: list[Step], seed: int) -> float:
    """How long the last of these steps takes."""
    machine = Machine(settings_of(seed))
    for step in steps[:-1]:
        machine.take(step)
    gc.collect()
    began = time.thread_time()
    machine.take(steps[-1])
    return time.thread_time() - began


def _failure(problem: str, steps: list[Step], seed: int) -> Failure:
    inputs = [(step.now, None if step.value is None else step.value.hex()) for step in steps]
    return Failure("machine", problem, inputs, seed)


def replay(path: Path) -> str | None:
    """Runs a saved failure again: what is wrong; None if nothing is any more."""
    saved = json.loads(path.read_text())
    steps = [Step(now, None if value is None else bytes.fromhex(value)) for now, value in saved["inputs"]]
    if saved["target"] != "machine":
        with scratch() as folder:
            target = next(target for target in targets(Path(folder)) if target.name == saved["target"])
            return _problem_of(Report(), target, steps[0].value or b"")
    machine = Machine(settings_of(saved["settings"]))
    for step in steps:
        began = time.thread_time()
        try:
            machine.take(step)
        except Exception:  # noqa: BLE001 - this is what is looked for
            return traceback.format_exc()
        if time.thread_time() - began >= LIMIT_S:
            return f"an input took {time.thread_time() - began:.3f} s"
    return None


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _told() -> Callable[[Report, int], None]:
    """Return what saves each failure, and says how it is run again, as soon as it is found."""
    saved = 0

    def told(report: Report, done: int) -> None:
        nonlocal saved
        for failure in report.failures[saved:]:
            saved += 1
            last = failure.problem.strip().splitlines()[-1]
            again = f"again: python -m tests.support.fuzz.run --replay {failure.save(FOLDER)}"
            print(f"{failure.target}, of {done:,} inputs: {last}\n  {again}", flush=True)

    return told


def lines(report: Report, seconds: float) -> Iterator[str]:
    yield f"{report.inputs.total():,} inputs in {seconds:.0f} s, {len(report.failures)} failures"
    for name, count in report.inputs.most_common():
        yield f"  {name:28} {count:>9,} inputs, slowest {1000 * report.slowest.get(name, 0.0):6.1f} ms"
    yield f"  {'tasks answered':28} {report.answered:>9,}"
    yield f"memory after each fifth: {', '.join(f'{size >> 20} MiB' for size in report.resident)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Gives damaged inputs to every decoder and to the coordinator's machine."
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path, help="a saved failure")
    chosen: Any = parser.parse_args(arguments)
    if chosen.replay is not None:
        problem = replay(chosen.replay)
        print(problem or "nothing is wrong with it")
        return 1 if problem else 0
    began = time.monotonic()
    report = fuzz(chosen.inputs, chosen.seed, _told())
    print("\n".join(lines(report, time.monotonic() - began)))
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
