"""Writes the demos' tasks: all prompts of three digits, and 1,800 sums; 200 of each are held out.

Run from the root of the project: ``python -m tools.make_demo_tasks``. The result is checked in.
"""

import itertools
import json
import random
from pathlib import Path

from workers.demo.subjects import SUBJECTS, SUMS, DemoSubject

FOLDER = Path(__file__).parent.parent / "workers" / "demo" / "tasks"
HELD_OUT, ALL, ALL_SUMS = 200, 1000, 1800
SEED = 1


def line(subject: DemoSubject, words: tuple[str, ...]) -> str:
    """Return a task as JSON."""
    said, number = " ".join(words), "-".join(words)
    task = {
        "copy": {"task_id": f"copy-{number}", "workflow": "sequence", "prompt": f"copy {said} =", "answer": said},
        "tools": {"task_id": f"trail-{number}", "workflow": "trail", "prompt": said},
        "sums": {
            "task_id": f"sum-{number}",
            "workflow": "math",
            "messages": [
                # An example, without which none is right at first; with it, three in ten. Its question takes the place
                # of the template's own system message. Up to the last token all of it is one block of the KV cache.
                {"role": "system", "content": "2 + 3"},
                {"role": "assistant", "content": "= 5"},
                {"role": "user", "content": " + ".join(words)},
            ],
            "answer": str(sum(map(int, words))),
        },
    }[subject.name]
    return json.dumps(task) + "\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS.values():
        if subject is SUMS:
            count, prompts = ALL_SUMS, list(itertools.product(map(str, range(10, 100)), repeat=2))
        else:
            count, prompts = ALL, list(itertools.product("0123456789", repeat=3))
        random.Random(SEED).shuffle(prompts)  # noqa: S311 - the same split each time is the point
        for name, chosen in (("held_out", prompts[:HELD_OUT]), ("train", prompts[HELD_OUT:count])):
            lines = "".join(line(subject, words) for words in sorted(chosen))
            (FOLDER / f"{subject.tasks}{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
