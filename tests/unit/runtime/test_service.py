"""One service's end: by itself, by an error, by a signal, by force."""

import asyncio
import signal
import subprocess
import sys

import pytest

from trinity_bus.runtime.service import run_service

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
        out, err = service.communicate(timeout=20)
    return service.returncode, out, err


def test_sigterm_is_an_orderly_end() -> None:
    assert run("pass", signal.SIGTERM) == (0, "clean\nreturned\n", "")


def test_ctrl_c_is_an_orderly_end_that_says_so() -> None:
    assert run("pass", signal.SIGINT) == (130, "clean\n", "")


def test_a_shutdown_that_hangs_is_cut_off() -> None:
    blocked = "import time; time.sleep(600)"
    assert run(blocked, signal.SIGTERM, grace=0.1) == (143, "", "did not stop within 0.1 s of SIGTERM\n")


def test_a_second_signal_ends_it_at_once() -> None:
    cleanup = "print('stopping', flush=True); await asyncio.sleep(600)"
    code, out, err = run(cleanup, signal.SIGINT, signal.SIGINT)
    assert (code, out, err) == (130, "", "stopped at once by a second signal (SIGINT)\n")


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
