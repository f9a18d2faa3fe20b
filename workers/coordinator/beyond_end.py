"""What becomes of input positions that the log does not reach.

A broker that loses its power may lose records that were read already; a topic that is deleted and made anew begins at
0. In both cases what the log holds now may have been read or not, and nobody can tell. The rule:

============  ==========================================================================================================
events        reading goes on at the end: whoever lives says so again, and an answer that is lost is one that is late,
              so that its attempt is made once more
commands      reading goes on at the end: a client that gets no reply asks again, and no old command is repeated
``tasks``     everything that the log holds is read again, if that is no more than the tasks that are surely remembered
              (``coordinator.dedup_window``): those that were read before are refused as repeated, and become dead
              letters. Else some would be done twice or not at all: the coordinator says so, is not ready, and waits for
              ``trinity-bus positions resolve --tasks beginning`` or ``--tasks end``
============  ==========================================================================================================

The command writes the positions as a coordinator would, and so fences the one that waits: that ends, and whoever takes
over reads from there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from schemas.topics import TASKS
from trinity_bus import awake
from trinity_bus.bus.read.offsets import BeyondEnd, Readable
from trinity_bus.health.process import watching
from workers.coordinator.changelog import Positions

log = logging.getLogger("workers.coordinator")

COMMAND = "trinity-bus positions resolve --tasks beginning|end"
_SAY_EVERY_S = 60.0


def undecided(beyond: Sequence[BeyondEnd], remembered: int) -> list[BeyondEnd]:
    # Those of which only the operator can say where reading goes on; ``remembered`` ended tasks are known by their id.
    tasks = [one for one in beyond if one.topic == TASKS.name]
    return tasks if sum(one.end - one.begin for one in tasks) > remembered else []


async def resolved(found: Readable, remembered: int, live: Callable[[], Awaitable[None]], every_s: float) -> Positions:
    """Return where reading goes on, by the rule; not while the operator has to decide.

    ``live`` says every ``every_s`` that this coordinator works, and raises when the operator has decided.
    """
    open_ = undecided(found.beyond, remembered)
    said = float("-inf")
    with watching("tasks, of which it is not known what was read", _never):
        while open_:
            if awake.now() - said > _SAY_EVERY_S:
                said = awake.now()
                log.error(
                    "%s: tasks may be lost, or done twice; nothing is read until you decide: %s",
                    "; ".join(map(str, open_)),
                    COMMAND,
                )
            await live()
            await asyncio.sleep(every_s)
    positions = dict(found.positions)
    for one in found.beyond:
        again = one.topic == TASKS.name
        positions[one.topic, one.partition] = one.begin if again else one.end
        log.error(
            "%s: records were lost, or the topic was made anew; %s",
            one,
            "what it holds is read again, and what is known is refused" if again else "reading goes on with what comes",
        )
    return positions


async def _never() -> bool:
    return False
