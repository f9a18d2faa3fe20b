"""What a model has written writes in its sandbox and nowhere else: not into rewards, nor into others' sandboxes."""

import sys
from pathlib import Path

from trinity_bus.sandbox import Sandbox

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
