"""Code that blocks, beside an event loop: each call has a thread of its own, and a time limit where one is set.

::

    function --async--> awaited, cancelled at its limit
             '--not---> a thread --returned, raised--> the caller
                           '--the caller does not wait any more--> GIVEN UP: it goes on, and is counted until it ends

A thread cannot be stopped. So a runner tells of those that were given up (``given_up``), and is replaced; what is still
in it dies with it.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self

from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.chat import Completion
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.runtime.service import in_daemon_thread

_GIVEN_UP: set[threading.Thread] = set()


async def in_thread[**P, R](function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a function that blocks returns. Whoever is cancelled while it waits leaves the thread behind."""
    work = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await in_daemon_thread(work, name=f"workflow {function!r}"[:80], left=_GIVEN_UP.add)


async def awaited[**P](function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Return what a function returns, which has a thread of its own where it is not ``async``."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await in_thread(function, *args, **kwargs)


def given_up() -> int:
    """Return how many threads are still running that nobody waits for."""
    _GIVEN_UP.difference_update([thread for thread in _GIVEN_UP if not thread.is_alive()])
    return len(_GIVEN_UP)


async def within[**P](
    limit_s: float,
    late: TrinityError,
    function: Callable[P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any:
    """Return what a function returns, async or not, within a time limit; ``late`` is raised where it is later."""
    try:
        async with awake.timeout(limit_s) as limit:
            return await awaited(function, *args, **kwargs)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise late from error


class BlockingContext:
    """A ``RolloutContext`` for a thread: its methods block; at the end of its block what waits is cancelled."""

    def __init__(self, ctx: RolloutContext) -> None:
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._waited: set[concurrent.futures.Future[Any]] = set()
        self._over = threading.Event()
        self.tokenizer = ctx.tokenizer
        self.task_id = ctx.task_id
        self.repeat_times = ctx.repeat_times
        self.sampling = ctx.sampling
        self.batch_type = ctx.batch_type

    def set_state(self, **values: Any) -> None:

        async def say() -> None:
            self._ctx.set_state(**values)

        self._wait(say())

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling | None = None,
        n: int = 1,
        *,
        pool: str | None = None,
    ) -> Sequence[Completion]:
        return self._wait(self._ctx.generate(prompt_token_ids, sampling, n, pool=pool))

    def chat(self, messages: Sequence[Mapping[str, Any]], *, pool: str, sampling: Sampling | None = None) -> str:
        return self._wait(self._ctx.chat(messages, pool=pool, sampling=sampling))

    def score(self, prompt_token_ids: Sequence[int], response_token_ids: Sequence[int], *, pool: str) -> list[float]:
        return self._wait(self._ctx.score(prompt_token_ids, response_token_ids, pool=pool))

    def call[**P, R](self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:

        async def called(*args: P.args, **kwargs: P.kwargs) -> R:
            return await in_thread(function, *args, **kwargs)

        return self._wait(self._ctx.call(name, called, *args, **kwargs))

    def end_turn(self) -> None:
        self._wait(self._ctx.end_turn())

    def _wait[R](self, asked: Coroutine[Any, Any, R]) -> R:
        if self._over.is_set():
            asked.close()
            raise concurrent.futures.CancelledError("this run is over")
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        self._waited.add(future)
        if self._over.is_set():
            # It ended between the two lines above, and saw nothing to cancel.
            future.cancel()
        try:
            return future.result()
        finally:
            self._waited.discard(future)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        for future in tuple(self._waited):
            future.cancel()
