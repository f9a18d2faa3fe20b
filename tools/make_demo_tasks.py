"""Writes the demos' tasks: all prompts of three digits, a fifth of them held out.

Run from the root of the project: ``python -m tools.make_demo_tasks``. The result is checked in.
"""

import itertools
import json
import random
from pathlib import Path

from workers.demo.subjects import COPY, TOOLS, DemoSubject

FOLDER = Path(__file__).parent.parent / "workers" / "demo" / "tasks"
HELD_OUT = 200
SEED = 1


def line(subject: DemoSubject, digits: tuple[str, ...]) -> str:
    """Return a task as JSON."""
    words, number = " ".join(digits), "-".join(digits)
    task = {
        COPY: {"task_id": f"copy-{number}", "workflow": "sequence", "prompt": f"copy {words} =", "answer": words},
        TOOLS: {"task_id": f"trail-{number}", "workflow": "trail", "prompt": words},
    }[subject]
    return json.dumps(task) + "\n"


def main() -> None:
    """Write the files of all subjects."""
    prompts = list(itertools.product("0123456789", repeat=3))
    random.Random(SEED).shuffle(prompts)  # noqa: S311 - the same split each time is the point
    FOLDER.mkdir(parents=True, exist_ok=True)
    for subject in (COPY, TOOLS):
        for name, chosen in (("held_out", prompts[:HELD_OUT]), ("train", prompts[HELD_OUT:])):
            lines = "".join(line(subject, digits) for digits in sorted(chosen))
            (FOLDER / f"{subject.tasks}{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
