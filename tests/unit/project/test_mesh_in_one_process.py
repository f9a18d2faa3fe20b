import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "mesh_in_one_process.py"

# Of the first batch and, behind it, of a task that waits for the version that is trained on it
WAY = [
    ("tasks", "sum-1: 2 + 3 = ?"),
    ("batches", "train-000001 RUNNING"),
    ("explorer-events", "explorer-0 serves version 0"),
    ("rollouts", "sum-1: 4 runs on explorer-0, by version 0"),
    ("experiences", "sum-1: [('2 + 3 = 5', 1.0), ('2 + 3 = 8', 0.0), ('2 + 3 = 8', 0.0), ('2 + 3 = 5', 1.0)]"),
    ("results", "sum-1: completed, reward 0.5"),
    ("batches", "train-000001 FINALIZED sum-1 sum-2"),
    ("steps", "step 1 trains on train-000001"),
    ("trainer-events", "step 1 is trained: version 1 is available"),
    ("model-versions", "version 1 for explorer-0"),
    ("explorer-events", "explorer-0 serves version 1"),
    ("rollouts", "sum-3: 4 runs on explorer-0, by version 1"),
    ("results", "sum-3: completed, reward 1"),
    ("batches", "train-000002 FINALIZED sum-3 sum-4"),
    ("model-versions", "version 2 for explorer-0"),
]


def test_it_shows_the_way_of_a_task_and_is_short() -> None:
    ended = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [tuple(line.split(maxsplit=1)) for line in ended.stdout.splitlines()]
    places = [lines.index(step) for step in WAY]
    assert places == sorted(places)
    assert len(EXAMPLE.read_text().splitlines()) <= 150
