"""The one thread that touches the engine, so that the event loop stays free and no two calls run at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self


class EngineThread:
    """Runs functions one after another. Leaving it waits for what is running."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)

    async def call[R](self, function: Callable[[], R]) -> R:
        # Cancelling the wait does not stop a function that has begun.
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)
