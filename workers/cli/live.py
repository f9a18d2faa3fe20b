"""A picture of the mesh that is drawn anew until Ctrl-C."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from workers.watch.follow import Follower

_REFRESH_S: Final = 0.5
_BATCHES_A_FRAME: Final = 20
"""A bound, so that a busy log cannot keep the picture from being drawn."""


async def show_live(console: Console, follower: Follower, draw: Callable[[], Awaitable[RenderableType]]) -> NoReturn:
    """Follows the log and shows what ``draw`` makes of it, until cancelled.

    Args:
        console: A terminal.
        follower: Its view is kept current.
        draw: Called for each picture.
    """
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            follower.view.tick(time.time())
            screen.update(await draw(), refresh=True)
            await asyncio.sleep(_REFRESH_S)
            for _ in range(_BATCHES_A_FRAME):
                if not await follower.update(0.0):
                    break
