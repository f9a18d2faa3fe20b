"""What pages that are open are told: that something is new. They ask for it themselves.

A stream holds nothing but the number of what it told last, so that a reader who is slow, or a page that is open for a
day, takes no memory.
"""

from collections import Counter
from typing import Final

from aiohttp import web

from workers.console.mesh_watcher import MeshWatcher
from workers.console.page_context import VISITOR

MAX_STREAMS: Final = 500
# Streams of one visitor at one address: nobody has as many pages open, and the others keep theirs
MAX_OF_ONE: Final = 50
_SILENCE_S: Final = 15.0  # After which a word is sent all the same, so that a reader who is gone is noticed


class Live:
    def __init__(self, feed: MeshWatcher) -> None:
        self._feed = feed
        self._streams: Counter[tuple[str, str, str | None]] = Counter()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        visitor = request[VISITOR]
        who = (visitor.name, visitor.role, request.remote)
        most = MAX_OF_ONE if self._streams[who] >= MAX_OF_ONE else MAX_STREAMS
        if most == MAX_OF_ONE or self._streams.total() >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text=f"{most} pages are open, and no more are told of news.")
        self._streams[who] += 1
        try:
            return await self._told(request)
        finally:
            self._streams[who] -= 1
            self._streams += Counter()  # forgets who has none

    async def _told(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        try:
            seen = self._feed.serial
            while True:
                serial = await self._feed.news(seen, _SILENCE_S)
                told = f"event: changed\ndata: {self._feed.trouble}\n\n" if serial != seen else ": alive\n\n"
                await response.write(told.encode())
                seen = serial
        except ConnectionResetError:
            return response
