"""Limits of a process that stands still: a real one, stopped by a signal; and waits of asyncio and of threads."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from trinity_bus import awake

STOPPED_S = 3.0
LIMIT_S = 2.5
_WAITS = {
    "timeout": f"""
async def main():
    print("waiting", flush=True)
    async with awake.timeout({LIMIT_S}):
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
""",
    "wait": f"""
async def main():
    print("waiting", flush=True)
    reading = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    done, _ = await awake.wait([reading], {LIMIT_S})
    assert done
asyncio.run(main())
""",
    "thread": f"""
read = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), read.set()), daemon=True).start()
print("waiting", flush=True)
assert awake.wait_in_thread(read.wait, {LIMIT_S})
""",
}


def test_who_was_stopped_for_longer_than_the_limit_still_hears_the_answer() -> None:
    begin = f"{sys.executable} -c".split()
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as stack:
        waiting: dict[str, Any] = {}
        for form, wait in _WAITS.items():
            text = f"import asyncio, sys, threading\nfrom trinity_bus import awake\nawake.now()\n{wait}"
            waiting[form] = stack.enter_context(subprocess.Popen([*begin, text], text=True, **pipes))
        for process in waiting.values():
            assert process.stdout.readline() == "waiting\n"
            os.kill(process.pid, signal.SIGSTOP)
        # A time that really passes is what this is about.
        time.sleep(STOPPED_S)
        for process in waiting.values():
            os.kill(process.pid, signal.SIGCONT)
        # The answer comes a moment after the process is awake, as that of one that stood still beside it.
        time.sleep(0.3)
        for form, process in waiting.items():
            _, said = process.communicate("answer\n")
            assert process.returncode == 0, f"{form}: {said}"


async def test_a_limit_ends_what_does_not_come() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with awake.timeout(0.05) as limit:
            await asyncio.Event().wait()
    assert limit.expired()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert await awake.wait([never], 0.05) == (set(), {never})
    assert not awake.wait_in_thread(threading.Event().wait, 0.05)
    assert time.monotonic() - began >= 0.15


async def test_what_is_raised_within_is_no_end_of_the_limit() -> None:
    with pytest.raises(TimeoutError):
        async with awake.timeout(60) as limit:
            raise TimeoutError
    assert not limit.expired()
    async with awake.timeout(None):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with awake.timeout(0):
            await asyncio.Event().wait()


async def test_the_first_of_several_is_enough_where_that_is_asked() -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    loop.call_soon(first.set_result, None)
    done, pending = await awake.wait([first, second], 60, return_when=asyncio.FIRST_COMPLETED)
    assert (done, pending) == ({first}, {second})


def test_an_alarm_rings_unless_it_is_cancelled() -> None:
    rung: list[str] = []
    rang = threading.Event()
    cancelled = awake.Alarm(0.05, partial(rung.append, "cancelled"))
    cancelled.cancel()
    awake.Alarm(0.1, rang.set)
    assert rang.wait(60)
    assert rung == []


def test_a_process_that_was_forked_counts_too() -> None:
    awake.now()
    text = """
import os, time
from trinity_bus import awake
awake.now()
pid = os.fork()
if pid == 0:
    began = awake.now()
    time.sleep(2.5)
    # Without a thread one look would count, a second; one that is late loses what it was late for.
    os._exit(0 if 1.2 < awake.now() - began < 60 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True)


def test_where_there_was_no_room_for_a_thread_the_next_look_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = awake._OfThisProcess()
    started: list[str] = []

    def start(thread: threading.Thread) -> None:
        if not started:
            started.append("none")
            raise RuntimeError("can't start new thread")
        started.append(thread.name)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        clock.look()
    clock.look()
    clock.look()
    assert started == ["none", "awake"]
