"""``python -m tests.support.fakes.newer_coordinator run coordinator``: a real one that knows one level more.

It stands for the coordinator of the next release, whose explorers have a field that this release cannot read.
"""

from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.state import codec

codec.NEWEST_LEVEL += 1
Explorer.SINCE = {"lane": codec.NEWEST_LEVEL}

# Whoever copies the level when imported copies this one.
from workers.cli.app import main  # noqa: E402

if __name__ == "__main__":
    main()
