import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.mesh.waiting import until
from trinity_bus.sandbox import Sandbox, SandboxError, SandboxLimits
from trinity_bus.sandbox.place import KeptPlaces, LeftPlaces, SandboxPlace, remove_tree

PYTHON = sys.executable
_NO_SIGNAL = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of sandboxes are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def test_a_command_runs_in_its_folder_and_says_how_it_ended() -> None:
    async with Sandbox() as box:
        await box.write_file("in/a.txt", "hello")
        done = await box.exec(["sh", "-c", "cat in/a.txt; cat; echo no >&2; echo b > b; env; exit 3"], stdin="you\n")
        assert done.returncode == 3
        assert done.stdout.startswith("helloyou\n")
        assert done.stderr == "no\n"
        given = {line.partition("=")[0] for line in done.stdout.splitlines()[1:]}
        assert given <= {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "_", "SHLVL", "OLDPWD"}
        assert await box.read_file("b") == b"b\n"
        assert (await box.exec(["no-such-program"])).returncode == 127
        folder = box.folder
    assert not folder.exists()
    with pytest.raises(SandboxError, match="is over"):
        await box.exec(["true"])


async def test_it_has_no_network_not_even_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 3)"
        async with Sandbox() as box:
            done = await box.exec([PYTHON, "-c", code])
    assert done.returncode == 1
    assert "Network is unreachable" in done.stderr


async def test_it_sees_no_other_processes_and_can_kill_none() -> None:
    async with Sandbox() as box:
        done = await box.exec([PYTHON, "-c", f"import os; print(os.getppid()); os.kill({os.getpid()}, 0)"])
    assert done.stdout == "1\n"
    assert "ProcessLookupError" in done.stderr


async def test_what_takes_too_long_or_is_left_behind_is_killed_with_all_that_it_has_started() -> None:
    code = "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(1000)"
    async with Sandbox(SandboxLimits(wall_s=4)) as box:
        done = await box.exec([PYTHON, "-c", "print('so', flush=True)\n" + code])
        folder = box.folder
        assert (done.timed_out, done.returncode, done.stdout) == (True, -1, "so\n")
        assert _running_in(folder) == []
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 3)\n    time.sleep(1000)"
    async with Sandbox() as box:
        assert (await box.exec([PYTHON, "-c", code])).returncode == 0
        assert _running_in(box.folder) == []


def _running_in(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = bytearray(1 << 30)", "MemoryError"),
        ("open('big', 'wb').write(bytes(2 << 20))", "File too large"),
        ("[open('/dev/null') for _ in range(300)]", "Too many open files"),
    ],
)
async def test_limits_are_kept(code: str, said: str) -> None:
    limits = SandboxLimits(memory_bytes=256 << 20, file_bytes=1 << 20, open_files=64)
    async with Sandbox(limits) as box:
        done = await box.exec([PYTHON, "-I", "-S", "-c", _NO_SIGNAL + code])
    assert done.returncode == 1
    assert said in done.stderr


async def test_time_of_the_processor_and_output_are_limited() -> None:
    async with Sandbox(SandboxLimits(cpu_s=1, wall_s=60)) as box:
        done = await box.exec([PYTHON, "-I", "-S", "-c", "while True: pass"])
    assert (done.returncode, done.timed_out) == (128 + 9, False)
    async with Sandbox(SandboxLimits(output_bytes=1000)) as box:
        done = await box.exec([PYTHON, "-I", "-S", "-c", "print('x' * 5_000_000)"])
    assert (len(done.stdout), done.truncated, done.returncode) == (1000, True, 0)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "link", "folder/x", "pipe", "."])
async def test_files_outside_of_it_are_out_of_reach(path: str) -> None:
    async with Sandbox() as box:
        await box.exec(["sh", "-c", "ln -s /etc/passwd link; ln -s /tmp folder; mkfifo pipe"])
        with pytest.raises(SandboxError):
            await box.read_file(path)
        with pytest.raises(SandboxError):
            await box.write_file(path, "x")


async def test_one_that_is_cancelled_leaves_nothing_alive() -> None:
    async with Sandbox() as box:
        running = asyncio.create_task(box.exec(["sh", "-c", "echo > begun; sleep 1000"], wall_s=9))
        await until((box.folder / "begun").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert _running_in(box.folder) == []


async def test_a_machine_without_namespaces_is_told_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Sandbox() as box:
        # A sandbox in a sandbox whose user namespaces are used up.
        monkeypatch.setattr("trinity_bus.sandbox.sandbox._JAIL", "/dev/stdin")
        script = b"import sys; print('no namespaces can be had here: so', file=sys.stderr); sys.exit(120)"
        with pytest.raises(SandboxError, match="no namespaces can be had here: so; a sandbox needs"):
            await box.exec(["true"], stdin=script)


def test_folders_of_dead_owners_are_removed_and_those_of_the_living_are_not(places: Path) -> None:
    left, new, other = places / "trinity-bus-sandbox-left", places / "trinity-bus-sandbox-new", places / "other"
    alive, kept, old = SandboxPlace.make(), SandboxPlace.claim("kept"), SandboxPlace.claim("old")
    for place in (kept, old):
        place.release()
    for folder in (left, new, other):
        (folder / "in").mkdir(parents=True)
    for folder in (left, other, alive.path, old.path):
        os.utime(folder, (0, 0))
    os.utime(kept.path, (time.time() - 300,) * 2)
    LeftPlaces().remove()
    assert not left.exists()
    assert not old.path.exists()
    assert all(folder.exists() for folder in (new, other, alive.path, kept.path))
    alive.remove()


def test_of_what_is_kept_there_is_no_more_than_so_much(places: Path) -> None:
    for number in range(70):
        place = SandboxPlace.claim(str(number))
        place.release()
        os.utime(place.path, (time.time() - 100 - number,) * 2)
    LeftPlaces().remove()
    assert len(list(places.iterdir())) == 64
    assert not place.path.exists(), "the oldest goes first"


def test_a_place_is_found_by_its_name_as_it_was_left_and_by_one_owner_at_a_time(places: Path) -> None:
    first = KeptPlaces("mesh", "task")
    place = first.of_run(3)
    (place.files / "a").write_text("so")
    place.note_calls(["x", "y"])
    while_owned = KeptPlaces("mesh", "task").of_run(3)
    assert while_owned.path != place.path
    assert while_owned.calls() == []
    while_owned.release()
    assert not while_owned.path.exists(), "nobody could find it"
    place.release()
    place.release()

    with KeptPlaces("mesh", "task") as lets_go:
        assert lets_go.of_run(3).path == place.path
    second = KeptPlaces("mesh", "task")
    assert second.of_run(4).calls() == []
    again = second.of_run(3)
    assert (again.calls(), (again.files / "a").read_text()) == (["x", "y"], "so")
    first.remove()
    assert again.path.exists(), "it has another owner"
    again.clear()
    assert (again.calls(), list(again.files.iterdir())) == ([], [])
    again.release()
    second.remove()
    assert list(places.iterdir()) == []


def test_a_place_of_that_name_that_is_no_folder_of_this_users_is_passed_over(places: Path) -> None:
    path = SandboxPlace.claim("name").path
    path.rename(places / "elsewhere")
    path.symlink_to(places / "elsewhere")
    place = SandboxPlace.claim("name")
    assert place.path not in (path, places / "elsewhere")
    place.remove()


async def test_a_sandbox_that_is_not_entered_leaves_nothing(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(_: LeftPlaces) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(LeftPlaces, "remove", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await Sandbox().__aenter__()
    assert not list(places.iterdir())


async def test_one_that_is_cancelled_at_its_end_lets_go_of_its_place(places: Path) -> None:
    busy = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        box, place = Sandbox(), SandboxPlace.claim("name")
        box.take(place)
        threads.submit(busy.wait)
        ending = asyncio.create_task(box.terminate())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        busy.set()
        # The one thread has done all that came before.
        await asyncio.to_thread(int)
        assert SandboxPlace.claim("name").path == place.path


def test_a_place_that_two_let_go_of_at_once_is_let_go_of_once(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, place = threading.Barrier(2), SandboxPlace.make()

    def slow(path: Path) -> None:
        # The other one is in the midst of it too, or waits for this one, which nobody can see.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        remove_tree(path)

    monkeypatch.setattr("trinity_bus.sandbox.place.remove_tree", slow)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(place.release) for _ in range(2)]:
            done.result()
    assert not list(places.iterdir())
