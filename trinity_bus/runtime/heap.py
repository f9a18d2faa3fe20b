"""The garbage collector of a service that is to answer within milliseconds.

A full collection looks at every object, also at the hundreds of thousands that imports have made and that stay for
good: 70 to 90 ms in a coordinator, at moments that nobody chooses. What is there when a service begins to work is taken
out of the collector's sight; what it makes from then on is little, and soon looked at. While modules are imported,
collections find nothing, and take an eighth of the time.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_FULL_AFTER: Final = 1000
"""Collections of what is young, of some 7,000 objects each, before everything is looked at: what circles of garbage may
take until then is 700 MiB."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within the block nothing is collected: what an import makes stays, and each collection looks at all of it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def freeze_gc() -> None:
    """Collect what the start has left, and have later collections pass over all that is there now.

    Call it once, when everything is imported and before the first work. What it covers is still freed when its last
    reference goes; only circles of it stay, until :func:`unfreeze_gc`.
    """
    gc.collect()
    gc.freeze()


def collect_all_rarely() -> None:
    """Have full collections come a hundred times less often, in a service that holds very much, and nothing in circles.

    With twenty thousand open tasks each takes a tenth of a second, and all of them together were a fifth of the
    coordinator's time while it took them in. What its machine makes for two thousand tasks has 4 objects in circles;
    aiokafka's for 3,000 records in 300 transactions none.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_AFTER)


def unfreeze_gc() -> None:
    """Show the collector everything again, and have it collect."""
    gc.unfreeze()
    gc.collect()
