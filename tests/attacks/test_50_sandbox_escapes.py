"""What runs in a sandbox reaches no socket outside, sees its own processes alone, and is bounded in sum.

And it writes there and nowhere else: not into rewards, nor into others' sandboxes.
"""

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

from trinity_bus.sandbox import Sandbox, SandboxLimits

MIB = 1 << 20

_CONNECTS = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    for address in sys.argv[1:]:
        try:
            with socket.socket(socket.AF_UNIX, kind) as mine:
                mine.connect(address.replace("@", chr(0)))
            print("reached", address)
        except OSError:
            pass
# One of a pair of datagram sockets can be connected to anything else.
for address in sys.argv[1:]:
    try:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        one.connect(address.replace("@", chr(0)))
        print("reached", address)
    except OSError:
        pass
# vsock leads to the machine below this one, and netlink to the kernel: no namespace of the network holds the first.
for family in (socket.AF_VSOCK, socket.AF_NETLINK, socket.AF_ALG):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET if family == socket.AF_ALG else socket.SOCK_STREAM
                      if family == socket.AF_VSOCK else socket.SOCK_RAW).close()
        print("has", family.name)
    except OSError:
        pass
"""


async def test_it_reaches_no_unix_socket_outside(tmp_path: Path) -> None:
    stream, datagram, abstract = str(tmp_path / "s"), str(tmp_path / "d"), f"\0sandbox-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for kind, address in (
            (socket.SOCK_STREAM, stream),
            (socket.SOCK_DGRAM, datagram),
            (socket.SOCK_STREAM, abstract),
        ):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        async with Sandbox() as box:
            done = await box.exec([sys.executable, "-c", _CONNECTS, stream, datagram, abstract.replace("\0", "@")])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_asyncio_and_pipes_of_multiprocessing_work_in_it() -> None:
    code = """
import asyncio, multiprocessing, socket
def child(end):
    end.send(end.recv() + 1)
async def main():
    one, other = socket.socketpair()
    one.sendall(b"x")
    return other.recv(1)
mine, its = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(its,))
process.start()
mine.send(1)
print(mine.recv(), asyncio.run(main()).decode())
process.join()
with open("/dev/shm/x", "w") as file:
    file.write("x")
print(len(open("/dev/urandom", "rb").read(4)))
"""
    async with Sandbox() as box:
        done = await box.exec([sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, "2 x\n4\n"), done.stderr


async def test_it_sees_no_process_of_the_machine_and_no_device() -> None:
    code = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/cmdline") as file:
        print(repr(file.read()))
print("devices", sorted(os.listdir("/dev")))
"""
    marker = "a process outside of all sandboxes"
    outside = await asyncio.create_subprocess_exec("sh", "-c", f"read _ # {marker}", stdin=asyncio.subprocess.PIPE)
    try:
        async with Sandbox() as box:
            done = await box.exec([sys.executable, "-c", code])
    finally:
        outside.kill()
        await outside.wait()
    *processes, devices = done.stdout.splitlines()
    assert len(processes) <= 2, processes
    assert not any(marker in process or "pytest" in process for process in processes)
    assert devices == "devices ['full', 'null', 'random', 'shm', 'urandom', 'zero']"


async def test_it_makes_no_namespace_and_no_ring_of_its_own() -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in NUMBERS:
    print(libc.syscall(number, 0x10000000, 0, 0, 0, 0))
"""
    # unshare, io_uring_setup, keyctl, memfd_create: the second opens sockets that no filter sees.
    numbers = {"x86_64": (272, 425, 250, 319), "aarch64": (97, 425, 219, 279)}[os.uname().machine]
    async with Sandbox() as box:
        done = await box.exec([sys.executable, "-c", code.replace("NUMBERS", str(numbers))])
    assert done.stdout.split() == ["-1"] * 4, done.stderr


async def test_a_bomb_of_processes_is_bounded_whoever_the_user_is() -> None:
    code = """
import os, time
made = 0
for _ in range(10_000):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        print("refused after", made, flush=True)
        os._exit(0)
    made += 1
print("has all", flush=True)
time.sleep(1000)
"""
    async with Sandbox(SandboxLimits(processes=32, wall_s=60)) as box:
        done = await box.exec([sys.executable, "-I", "-S", "-c", code])
    if done.stdout:
        # The kernel counts, except for root.
        assert done.stdout == "refused after 31\n"
        assert os.geteuid() != 0
    else:
        assert (done.returncode, done.stderr.splitlines()[-1]) == (137, "killed: more than 32 processes and threads")


async def test_children_that_share_their_memory_are_not_taken_for_many() -> None:
    code = """
import os, time
taken = bytearray(os.urandom(1 << 20)) * 100
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        time.sleep(1)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print("shared")
"""
    async with Sandbox(SandboxLimits(memory_bytes=400 * MIB, wall_s=60)) as box:
        done = await box.exec([sys.executable, "-I", "-S", "-c", code])
    assert (done.returncode, done.stdout) == (0, "shared\n"), done.stderr


TAKEN = """
import os, time
for _ in range(16):
    if os.fork() == 0:
        taken = bytearray(os.urandom(1 << 20)) * 48
        time.sleep(1000)
time.sleep(1000)
"""
FILLED = """
import os, time
kept = []
for number in range(200):
    file = open(str(number), "wb", buffering=0)
    file.write(bytes(1 << 20))
    EACH
print("filled", flush=True)
time.sleep(1000)
"""
MANY = "import time\nfor number in range(3000): open(str(number), 'w').close()\ntime.sleep(1000)"
FOLDER = SandboxLimits(folder_bytes=32 * MIB, wall_s=60), f"{32 * MIB} bytes in its folder"


@pytest.mark.parametrize(
    ("code", "limits", "more_than"),
    [
        pytest.param(
            TAKEN, SandboxLimits(memory_bytes=256 * MIB, wall_s=60), f"{256 * MIB} bytes of memory", id="many children"
        ),
        pytest.param(FILLED.replace("EACH", "pass"), *FOLDER, id="named files"),
        pytest.param(FILLED.replace("EACH", "os.unlink(str(number)); kept.append(file)"), *FOLDER, id="unlinked files"),
        pytest.param(
            FILLED.replace("EACH", "os.mkdir(f'd{number}'); os.chdir(f'd{number}')"), *FOLDER, id="nested files"
        ),
        pytest.param(MANY, SandboxLimits(folder_files=1000, wall_s=60), "1000 files in its folder", id="many files"),
    ],
)
async def test_memory_and_files_are_bounded_in_sum(code: str, limits: SandboxLimits, more_than: str) -> None:
    async with Sandbox(limits) as box:
        done = await box.exec([sys.executable, "-I", "-S", "-c", code])
    assert (done.timed_out, done.returncode) == (False, 137), done.stderr
    assert done.stderr.splitlines()[-1] == f"killed: more than {more_than}"


PROGRAM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def forge():
    for path in sys.argv[1:]:
        try:
            with open(path, "w") as file:
                file.write("forged")
            print("wrote", path)
        except OSError as error:
            print("kept from", path)
forge()
# Who is root in its own namespace may mount in it, and takes nothing back.
libc.mount(b"none", b"/", None, 32 | 4096, None)
try:
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
except OSError:
    pass
libc.mount(b"none", b"/", None, 32 | 4096, None)
libc.umount2(os.getcwd().encode(), 2)
forge()
with open("own", "w") as file:
    file.write("x" * 10)
with open("/dev/null", "w") as file:
    file.write("x")
import tempfile
with tempfile.NamedTemporaryFile() as file:
    print(os.path.dirname(file.name) == os.getcwd() == os.environ["HOME"])
"""


async def test_a_program_forges_no_reward_and_no_other_sandbox(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text("honest")
    async with Sandbox() as other, Sandbox() as sandbox:
        await other.write_file("program.py", "honest")
        left = Path("/var/tmp") / f"left-by-{sandbox.folder.name}"  # noqa: S108 - nothing is to come of it
        targets = [rewards, other.folder / "program.py", sandbox.folder.parent / f"left-by-{sandbox.folder.name}", left]
        done = await sandbox.exec([sys.executable, "-c", PROGRAM, *map(str, targets)])
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"kept from {path}" for path in targets] * 2 + ["True"]
        assert rewards.read_text() == "honest"
        assert await other.read_file("program.py") == b"honest"
        assert await sandbox.read_file("own") == b"x" * 10
        assert not left.exists()
