"""Processes of a benchmark, each with a pipe to the one that measures."""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIMIT_S = 120.0


class Side:
    """A process whose body is given its end of the pipe, and what else there is for it."""

    def __init__(self, body: Callable[..., None], *arguments: Any, start: str = "spawn") -> None:
        context: Any = multiprocessing.get_context(start)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=body, args=(theirs, *arguments), name=body.__name__)
        self.process.start()
        # So that its death ends our waiting.
        theirs.close()

    def hear(self, limit_s: float = LIMIT_S) -> Any:
        """Return what it says next. TimeoutError: it says nothing."""
        if not self.pipe.poll(limit_s):
            raise TimeoutError(f"{self.process.name} said nothing for {limit_s:g} s")
        return self.pipe.recv()

    async def tell(self, what: Any) -> Any:
        """Send something and return the answer, whenever that comes."""
        self.pipe.send(what)
        return await asyncio.to_thread(self.pipe.recv)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def child(body: Callable[..., None], *arguments: Any) -> Iterator[Side]:
    """Run a process until the end of the block, at which it has a while to end by itself if nothing was raised."""
    side = Side(body, *arguments)
    try:
        yield side
        side.process.join(LIMIT_S)
    finally:
        side.end()
