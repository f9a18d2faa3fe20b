import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.mesh.processes import assert_all_gone, family_of
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.runtime import process
from trinity_bus.runtime.process import Child, how_ended, start_time, tail

FAMILY = "setsid sh -c 'echo apart; exec sleep 600' & sh -c 'sleep 600 & echo ready; wait' & wait"
"""A command with children, one of them in a session of its own, which has left the others' when it says so."""

OWNER = f"""
import sys, time
from trinity_bus.runtime import process
from trinity_bus.runtime.process import Child
child = Child(["sh", "-c", {FAMILY!r}])
time.sleep(600)
"""


def wait_for_line(output: Path, line: str) -> None:
    wait_until(lambda: line in tail(output), f"line {line!r}")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A child with a family, all of which is there."""
    read_end, write_end = os.pipe()
    with Child(["sh", "-c", FAMILY], output=write_end) as child:
        os.close(write_end)
        with os.fdopen(read_end) as lines:
            assert {lines.readline(), lines.readline()} == {"ready\n", "apart\n"}
            yield child


@pytest.mark.parametrize(
    ("command", "code", "said", "told"),
    [
        (["sh", "-c", "echo said; exit 3"], 3, "said\n", "ended with status 3"),
        (["sh", "-c", "kill -9 $$"], -signal.SIGKILL, "", "was ended by SIGKILL"),
        (["sh", "-c", "kill -63 $$"], -63, "", "was ended by signal 63"),
        (["no-such-program"], 127, "cannot run no-such-program: No such file or directory\n", "ended with status 127"),
    ],
)
def test_returns_what_the_command_returned(output: Path, command: list[str], code: int, said: str, told: str) -> None:
    with Child(command, output=output) as child:
        assert child.wait(10) == code
    assert (output.read_text(), how_ended(code)) == (said, told)


def test_the_command_starts_with_default_signals(output: Path) -> None:
    shown = "import signal; print([signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)])"
    with Child([sys.executable, "-c", shown], output=output) as child:
        child.wait(10)
    assert output.read_text() == "['SIG_DFL', 'SIG_DFL', 'SIG_DFL']\n"
    # Python ignores this one for itself, so look from outside.
    with Child(["sh", "-c", "grep SigIgn /proc/self/status"], output=output) as child:
        child.wait(10)
    assert int(output.read_text().split()[-1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize(
    ("asked", "grace_s", "code"),
    [("'echo asked; exit 5'", 10, 5), ("''", 0.05, -signal.SIGKILL)],
    ids=["ends", "stays"],
)
def test_stop_asks_the_command_and_kills_what_stays(output: Path, asked: str, grace_s: float, code: int) -> None:
    with Child(["sh", "-c", f"trap {asked} TERM; echo $$; while :; do sleep 0.01; done"], output=output) as child:
        wait_for_line(output, str(child.pid))
        assert child.stop(grace_s) == code
    assert output.read_text().splitlines()[1:] == ["asked"] * (code == 5)


@pytest.mark.parametrize("kill", [Child.kill, lambda child: os.kill(child.pid, signal.SIGKILL)], ids=["all", "command"])
def test_the_family_does_not_outlive_the_command(child: Child, kill: Callable[[Child], object]) -> None:
    family = family_of(child.pid)
    assert len(family) >= 4
    kill(child)
    assert child.wait(10) == -signal.SIGKILL
    assert_all_gone(family)


def test_the_family_does_not_outlive_a_killed_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert {owner.stdout.readline(), owner.stdout.readline()} == {"ready\n", "apart\n"}
        family = family_of(owner.pid)
        # The owner, the guard, the command and its three descendants.
        assert len(family) >= 6
        owner.kill()
    assert_all_gone(family)


def test_the_session_does_not_outlive_a_killed_guard(child: Child) -> None:
    session = os.getsid(child.pid)
    family = family_of(child.pid)
    inside = [process for process in family if os.getsid(process.pid) == session]
    os.kill(session, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert_all_gone(inside)
    # Without the guard, one that has left the session is out of reach.
    (stray,) = set(family) - set(inside)
    stray.kill()


def test_a_child_outlives_the_thread_that_started_it(output: Path) -> None:
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(Child(["sh", "-c", "echo up; read -r x || exit 4"])))
    thread.start()
    thread.join()
    with started[0] as child:
        assert child.wait(10) == 4


def test_threads_may_look_at_the_same_time_whether_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ended = itertools.count(), process.has_ended

    def slowly(pid: int) -> bool:
        # Every second one asks when another has long reaped it.
        time.sleep(0.2 * (next(asked) % 2))
        return ended(pid)

    monkeypatch.setattr(process, "has_ended", slowly)
    with Child(["true"]) as child, ThreadPoolExecutor(4) as pool:
        assert [wait.result() for wait in [pool.submit(child.wait, 10) for _ in range(4)]] == [0] * 4


def test_a_passed_descriptor_is_held_until_the_command_ends(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        child = Child(["sleep", "600"], pass_fds=[mine.fileno()])
    with (tmp_path / "lock").open("w") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_start_time_tells_processes_apart() -> None:
    mine = some(start_time(os.getpid()))
    assert mine == start_time(os.getpid())
    with Child(["sleep", "600"]) as child:
        assert (start_time(child.pid) or 0) >= mine
    assert start_time(child.pid) is None


def test_tail_reads_only_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"x" * 200_000 + b"\nlast but one\n\xff last\n")
    assert tail(log, 2) == "last but one\n\ufffd last"
