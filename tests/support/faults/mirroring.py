"""A trainer that is to be killed amid a copy: ``python -m tests.support.faults.mirroring URL FOLDER COUNT``.

It sends the folder's newest checkpoint, prints ``amid`` when COUNT objects are there, and stays.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from trinity_bus.runtime import object_store
from trinity_bus.runtime.object_store import ObjectStore
from trinity_bus.training.checkpoint.mirror import CheckpointMirror

if __name__ == "__main__":
    original, left = ObjectStore.write, [int(sys.argv[3])]

    def write_and_stay(self: ObjectStore, found: Mapping[str, bytes]) -> None:
        original(self, found)
        left[0] -= len(found)
        if left[0] <= 0:
            sys.stdout.write("amid\n")
            sys.stdout.flush()
            sys.stdin.read()

    ObjectStore.write = write_and_stay  # type: ignore[method-assign, assignment]
    object_store.AT_ONCE = 1  # type: ignore[misc]
    mirror = CheckpointMirror(Path(sys.argv[2]), sys.argv[1], keep=3)
    mirror.open()
    mirror.finish()
    mirror.run()
