"""Writes the demo's tasks: every prompt "copy a b c =" of three digits, a fifth of them held out.

Run from the root of the project: ``python tools/make_demo_tasks.py``. The result is checked in.
"""

import itertools
import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "workers" / "demo" / "tasks"
HELD_OUT = 200
SEED = 1


def line(digits: tuple[str, ...]) -> str:
    """Return a task as JSON."""
    words = " ".join(digits)
    task = {
        "task_id": f"copy-{'-'.join(digits)}",
        "workflow": "sequence",
        "prompt": f"copy {words} =",
        "answer": words,
    }
    return json.dumps(task) + "\n"


def main() -> None:
    """Write both files."""
    prompts = list(itertools.product("0123456789", repeat=3))
    random.Random(SEED).shuffle(prompts)  # noqa: S311 - the same split each time is the point
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("held_out", prompts[:HELD_OUT]), ("train", prompts[HELD_OUT:])):
        (FOLDER / f"{name}.jsonl").write_text("".join(line(digits) for digits in sorted(chosen)), encoding="utf-8")


if __name__ == "__main__":
    main()
