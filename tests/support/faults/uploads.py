"""A trainer that is to be killed amid writing a version: ``python -m tests.support.faults.uploads URL``.

It stages ``weights_of(1)`` as version 1 and begins to write it, prints ``amid`` when one object is there, and stays.
"""

import sys
from collections.abc import Mapping

from tests.support.faults.transfers import weights_of
from trinity_bus.runtime import object_store
from trinity_bus.runtime.object_store import ObjectStore
from trinity_bus.weights import objects

if __name__ == "__main__":
    original = ObjectStore.write

    def write_and_stay(self: ObjectStore, found: Mapping[str, bytes]) -> None:
        original(self, found)
        sys.stdout.write("amid\n")
        sys.stdout.flush()
        sys.stdin.read()

    ObjectStore.write = write_and_stay  # type: ignore[method-assign, assignment]
    object_store.AT_ONCE = 1  # type: ignore[misc]
    publisher = objects.ObjectPublisher(sys.argv[1], bucket_bytes=1 << 12)
    publisher.stage(1, weights_of(1).items())
    publisher.durable(1)
