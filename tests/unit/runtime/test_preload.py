"""Commands that are forked from a process that has imported for them."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

import psutil
import pytest

from tests.support.mesh.processes import assert_all_gone, family_of
from trinity_bus.runtime.preload import ForkedCommand, Preload, read_environment, write_environment
from trinity_bus.runtime.process import ProcessError

HERE = __name__
LIMIT_S = 60.0
IMPORTED: list[int] = []


def load() -> None:
    """What is preloaded: notes in which process."""
    IMPORTED.append(os.getpid())


def fail() -> None:
    raise RuntimeError("cannot be imported")


def slow() -> None:
    time.sleep(600)


def main() -> None:
    """A command: what it does is its first argument."""
    match sys.argv[1]:
        case "tell":
            print(*sys.argv, os.environ.get("OF_COMMAND"), [psutil.Process().parent().ppid()] == IMPORTED)  # type: ignore[union-attr]
            print(threading.active_count(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "PATH" in os.environ)
        case "exit":
            raise SystemExit(int(sys.argv[2]))
        case "raise":
            raise ValueError("of the command's")
        case "family":
            if os.fork() == 0:
                os.setsid()
            signal.pause()


def other_main() -> None:
    """A command of a branch that has commands of its own."""
    print("other", len(IMPORTED))


@pytest.fixture
def preload(tmp_path: Path) -> Iterator[Callable[..., Preload]]:
    with ExitStack() as made:

        def make(*functions: str) -> Preload:
            named = [f"{HERE}:{name}" for name in functions]
            begun = Preload.begin(named, name="preload", main=f"{HERE}:main", output=tmp_path / "preload")
            return made.enter_context(begun)

        yield make


def start(preload: Preload, folder: Path, *arguments: str) -> ForkedCommand:
    env = {"OF_COMMAND": "yes", "PATH": os.environ["PATH"]}
    return preload.start(arguments, name="mine", env=env, output=folder / f"{arguments[0]}.log")


def test_a_command_has_its_own_environment_and_what_is_imported(
    preload: Callable[..., Preload], tmp_path: Path
) -> None:
    made = preload("load")
    # Ordered at once; it waits for the imports.
    command = start(made, tmp_path, "tell", "more")
    assert command.wait(LIMIT_S) == 0, (tmp_path / "preload").read_text()
    assert (tmp_path / "tell.log").read_text() == "trinity-bus tell more yes True\n1 True True\n"


def test_it_ends_as_it_ends(preload: Callable[..., Preload], tmp_path: Path) -> None:
    made = preload()
    codes = [start(made, tmp_path, "exit", "7"), start(made, tmp_path, "raise"), start(made, tmp_path, "family")]
    assert codes[0].wait(LIMIT_S) == 7
    assert codes[1].wait(LIMIT_S) == 1
    assert "ValueError: of the command's" in (tmp_path / "raise.log").read_text()
    os.kill(codes[2].pid, signal.SIGSEGV)
    assert codes[2].wait(LIMIT_S) == -signal.SIGSEGV


def test_an_order_that_no_datagram_holds_is_refused(preload: Callable[..., Preload], tmp_path: Path) -> None:
    made = preload()
    with pytest.raises(ProcessError, match=r"mine cannot be forked: .* too large .*; put what is large into a file"):
        made.start(["exit", "7", *["x" * 100_000] * 2], name="mine", env=os.environ, output=tmp_path / "exit.log")
    large = made.start(["exit", "3", "x" * 190_000], name="mine", env=os.environ, output=tmp_path / "log")
    assert large.wait(LIMIT_S) == 3
    assert start(made, tmp_path, "exit", "7").wait(LIMIT_S) == 7


def test_an_environment_may_be_of_any_size_and_whoever_forks_never_sees_it(
    preload: Callable[..., Preload], tmp_path: Path
) -> None:
    # Made here: that process has imported this file.
    made, secret = preload(), token_hex(32)
    env = {"OF_COMMAND": secret, "PATH": os.environ["PATH"], "LARGE": "x" * 400_000, "ODD": "\udcff=\n"}
    assert made.start(["tell"], name="mine", env=env, output=tmp_path / "log").wait(LIMIT_S) == 0
    assert secret in (tmp_path / "log").read_text()
    assert secret.encode() not in memory_of(made.process.pid)
    assert read_environment(write_environment(env)) == env


def memory_of(pid: int) -> bytes:
    """Return all that a process has written to its memory."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    spans = [[int(place, 16) for place in line[0].split("-")] for line in lines if line[1].startswith("rw")]
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        parts = []
        for begin, end in spans:
            memory.seek(begin)
            parts.append(memory.read(end - begin))
    return b"".join(parts)


def test_a_branch_waits_for_its_turn_and_has_own_commands(preload: Callable[..., Preload], tmp_path: Path) -> None:
    made, turn = preload("load"), threading.Event()
    log = tmp_path / "branch"
    functions, main = [f"{HERE}:load"], f"{HERE}:other_main"
    with made.branch(functions, name="twig", env=os.environ, output=log, main=main, turn=turn.is_set) as branch:
        command = start(branch, tmp_path, "other")
        # One that is ordered later, and has run: there was time for both.
        assert start(made, tmp_path, "exit", "7").wait(LIMIT_S) == 7
        assert not branch.loaded
        turn.set()
        assert command.wait(LIMIT_S) == 0
    assert (tmp_path / "other.log").read_text() == "other 2\n"


@pytest.mark.parametrize("way", ["terminate", "kill", "guard", "close", "preload"])
def test_nothing_of_it_is_left(preload: Callable[..., Preload], tmp_path: Path, way: str) -> None:
    made = preload()
    command = start(made, tmp_path, "family")
    process = psutil.Process(command.pid)
    while not process.children():
        assert command.poll() is None
        time.sleep(0.005)
    assert process.cmdline()[0] == "trinity-bus: mine"
    family = family_of(command.pid)
    ways: dict[str, Callable[[], object]] = {
        "terminate": command.terminate,
        "kill": command.kill,
        "guard": lambda: os.kill(process.ppid(), signal.SIGKILL),
        "close": made.close,
        "preload": lambda: os.kill(made.process.pid, signal.SIGKILL),
    }
    ways[way]()
    assert command.wait(LIMIT_S) == (-signal.SIGTERM if way == "terminate" else -signal.SIGKILL)
    # Without the guard, one that has left the session is out of reach.
    assert_all_gone(family[:1] if way == "guard" else family)


def test_a_branch_ends_alone_and_with_what_it_was_forked_from(preload: Callable[..., Preload], tmp_path: Path) -> None:
    made = preload("load")
    branches = [made.branch([], name=name, env=os.environ, output=tmp_path / name) for name in ("twig", "other")]
    waiting = [start(one, tmp_path, "family") for one in branches]
    families = [family_of(one.pid) for one in waiting]
    assert branches[0].loaded
    assert psutil.Process(branches[0].process.pid).cmdline()[0] == "trinity-bus: twig"
    branches[0].close()
    assert waiting[0].wait(LIMIT_S) == -signal.SIGKILL
    assert_all_gone(families[0])
    assert waiting[1].poll() is None
    made.close()
    assert waiting[1].wait(LIMIT_S) == -signal.SIGKILL
    assert_all_gone(families[1])
    branches[1].close()


def test_one_that_waits_for_imports_can_be_told_to_end(preload: Callable[..., Preload], tmp_path: Path) -> None:
    command = start(preload("slow"), tmp_path, "tell")
    assert command.poll() is None
    assert not command.started
    assert command.stop(1.0) == -signal.SIGTERM
    assert command.pid == 0


@pytest.mark.parametrize("of_branch", [False, True])
def test_where_an_import_fails_its_words_are_kept_and_what_waits_ends(
    preload: Callable[..., Preload], tmp_path: Path, *, of_branch: bool
) -> None:
    made = preload("load" if of_branch else "fail")
    if of_branch:
        made = made.branch([f"{HERE}:fail"], name="twig", env=os.environ, output=tmp_path / "preload")
    with made:
        assert start(made, tmp_path, "tell").wait(LIMIT_S) == -signal.SIGKILL
        assert made.process.poll() == 1
    assert "RuntimeError: cannot be imported" in (tmp_path / "preload").read_text()
