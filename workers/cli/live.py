"""A picture of the mesh that is drawn anew until Ctrl-C."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from trinity_bus.view import MeshFollower

_REFRESH_S: Final = 0.5


async def show_live(
    console: Console, follower: MeshFollower, draw: Callable[[], Awaitable[RenderableType]]
) -> NoReturn:
    """Show what ``draw`` makes of the mesh, until cancelled.

    Args:
        console: A terminal.
        follower: Of what is drawn.
        draw: Called for each picture.
    """
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            follower.state.tick(time.time())
            screen.update(await draw(), refresh=True)
            await asyncio.sleep(_REFRESH_S)
