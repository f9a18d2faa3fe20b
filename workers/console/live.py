"""What pages that are open are told: that something is new. They ask for it themselves.

A stream holds nothing but the number of what it told last, so that a reader who is slow, or a page that is open for a
day, takes no memory.
"""

from typing import Final

from aiohttp import web

from workers.console.mesh_watcher import MeshWatcher

MAX_STREAMS: Final = 500
_SILENCE_S: Final = 15.0
"""After which a word is sent all the same, so that a reader who is gone is noticed."""


class Live:
    """Tells open pages.

    Args:
        feed: Has the news.
    """

    def __init__(self, feed: MeshWatcher) -> None:
        self._feed = feed
        self._streams = 0

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Tell one page until it is closed."""
        if self._streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_STREAMS} pages are open, and no more are told of news.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        self._streams += 1
        try:
            seen = self._feed.serial
            while True:
                serial = await self._feed.news(seen, _SILENCE_S)
                told = f"event: changed\ndata: {self._feed.trouble}\n\n" if serial != seen else ": alive\n\n"
                await response.write(told.encode())
                seen = serial
        except ConnectionResetError:
            return response
        finally:
            self._streams -= 1
