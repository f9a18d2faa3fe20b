import asyncio
import threading

import pytest

from trinity_bus.runtime.background import in_daemon_thread


async def test_work_is_done_though_the_caller_is_cancelled_before_the_thread_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = threading.Event()
    held: list[threading.Thread] = []

    def hold(thread: threading.Thread) -> None:
        held.append(thread)

    start = threading.Thread.start
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", hold)
        caller = asyncio.create_task(in_daemon_thread(done.set, name="work"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    start(held[0])
    held[0].join(10)
    assert done.is_set()
