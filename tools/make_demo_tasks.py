"""Writes the demos' tasks: every prompt of three digits, a fifth of them held out.

Run from the root of the project: ``python -m tools.make_demo_tasks``. The result is checked in.
"""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

from workers.demo.courses import COPY, TOOLS
from workers.demo.drawers import contents

FOLDER = Path(__file__).parent.parent / "workers" / "demo" / "tasks"
HELD_OUT = 200
SEED = 1
type Digits = tuple[str, ...]


def copied(digits: Digits) -> dict[str, str]:
    """One task of the course ``copy``."""
    words = " ".join(digits)
    return {
        "task_id": f"copy-{'-'.join(digits)}",
        "workflow": "sequence",
        "prompt": f"copy {words} =",
        "answer": words,
    }


def opened(digits: Digits) -> dict[str, str]:
    """One task of the course ``tools``."""
    words = " ".join(digits)
    return {
        "task_id": f"open-{'-'.join(digits)}",
        "workflow": "drawers",
        "prompt": f"open {words}",
        "answer": contents(words),
    }


def write(prefix: str, task: Callable[[Digits], dict[str, str]]) -> None:
    """Write both files of a course."""
    prompts = list(itertools.product("0123456789", repeat=3))
    random.Random(SEED).shuffle(prompts)  # noqa: S311 - the same split each time is the point
    for name, chosen in (("held_out", prompts[:HELD_OUT]), ("train", prompts[HELD_OUT:])):
        lines = (json.dumps(task(digits)) + "\n" for digits in sorted(chosen))
        (FOLDER / f"{prefix}{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write the files of all courses."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(COPY.tasks, copied)
    write(TOOLS.tasks, opened)


if __name__ == "__main__":
    main()
