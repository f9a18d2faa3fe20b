"""A picture of the mesh that is drawn anew until Ctrl-C."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH_S: Final = 0.5


async def show_live(console: Console, draw: Callable[[], Awaitable[RenderableType]]) -> NoReturn:
    """Show what ``draw`` makes of the mesh, again and again, until cancelled."""
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(await draw(), refresh=True)
            await asyncio.sleep(_REFRESH_S)
