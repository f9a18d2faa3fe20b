import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from trinity_bus.runtime.service import in_daemon_thread, run_service

SERVICE = """
import asyncio, sys
from trinity_bus.runtime.service import run_service

async def main():
    print("up", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        {cleanup}
        print("clean", flush=True)

run_service(main, grace_s={grace})
print("returned", flush=True)
"""
HANGS = "import time; time.sleep(600)"
STOPPING = "print('stopping', flush=True); await asyncio.sleep(600)"


def run(cleanup: str, *signals: signal.Signals, grace: float = 30) -> tuple[int, str, str]:
    """Start a service, send signals when it is up, and return its exit code and what it said."""
    command = [sys.executable, "-c", SERVICE.format(cleanup=cleanup, grace=grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "up\n"
        service.send_signal(signals[0])
        if len(signals) > 1:
            assert service.stdout.readline() == "stopping\n"
            service.send_signal(signals[1])
        out, err = service.communicate(timeout=60)
    return service.returncode, out, err


@pytest.mark.parametrize(
    ("cleanup", "signals", "grace", "ended"),
    [
        ("pass", [signal.SIGTERM], 30, (0, "clean\nreturned\n", "")),
        ("pass", [signal.SIGINT], 30, (130, "clean\n", "")),
        (HANGS, [signal.SIGTERM], 0.1, (143, "", "did not stop within 0.1 s of SIGTERM\n")),
        (STOPPING, [signal.SIGINT] * 2, 30, (130, "", "stopped at once by a second signal (SIGINT)\n")),
    ],
    ids=["SIGTERM", "Ctrl+C", "a shutdown that hangs", "a second signal"],
)
def test_a_signal_is_an_orderly_end_or_one_that_says_so(
    cleanup: str, signals: list[signal.Signals], grace: float, ended: tuple[int, str, str]
) -> None:
    assert run(cleanup, *signals, grace=grace) == ended


def test_an_error_during_shutdown_is_not_lost() -> None:
    code, _, err = run("raise ValueError('disk full')", signal.SIGTERM)
    assert code == 1
    assert "ValueError: disk full" in err


def test_returns_when_the_service_does() -> None:
    async def main() -> None:
        await asyncio.sleep(0)

    run_service(main)


def test_the_first_error_comes_out_of_its_groups() -> None:
    async def broken() -> None:
        raise LookupError("first")

    async def main() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.sleep(600))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(broken())

    with pytest.raises(LookupError, match="first"):
        run_service(main)


async def test_work_is_done_though_its_caller_is_cancelled_before(monkeypatch: pytest.MonkeyPatch) -> None:
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
