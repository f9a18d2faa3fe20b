"""A small disk of a folder's own, that can be filled to the last byte: what is written there fails with ENOSPC.

It is a file system in memory, mounted over the folder in a mount namespace that nobody else is in. A process holds the
namespace for as long as the disk is wanted, so what lies on it outlives those that are started in it, and is looked at
from outside through that process. To mount one takes the rights of root.

::

    made --fill()--> no byte is left --empty()--> as it was before
"""

import contextlib
import errno
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.process import Child, tail

LIMIT_S: Final = 60.0
_CHUNK: Final = bytes(64 << 10)
_MOUNT: Final = """
set -eu
mkdir "$2"
mount -t tmpfs -o "size=$3" none "$2"
cp -a "$1/." "$2/"
mount --bind "$2" "$1"
exec sleep infinity
"""


def can_mount() -> bool:
    """Whether this process may mount something where only its own children see it."""
    try:
        tried = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"],  # noqa: S108 - in a namespace of its own
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0


class SmallDisk:
    """A disk of so many MiB over a folder, with what the folder holds; beside it come a folder ``disk`` and a log."""

    def __init__(self, folder: Path, mib: int) -> None:
        self._folder = folder
        output = folder.with_name("disk.log")
        script = ["sh", "-c", _MOUNT, "sh", str(folder), str(folder.with_name("disk")), f"{mib}m"]
        self._holder = Child(["unshare", "--mount", "--propagation", "private", *script], output=output)
        try:
            wait_until(self._is_mounted, f"a disk over {folder}", LIMIT_S, 0.01)
        except AssertionError as error:
            self.close()
            raise AssertionError(f"{error}: {tail(output, 20)}") from None

    def command(self, command: Sequence[str | Path], cwd: Path) -> list[str]:
        """Return a command that is run where the disk is seen."""
        namespace = f"/proc/{self._holder.pid}/ns/mnt"
        return ["nsenter", f"--mount={namespace}", f"--wd={cwd}", "--", *map(str, command)]

    def fill(self) -> None:
        """Take all that is left of it."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(_CHUNK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self) -> None:
        """Give back what :meth:`fill` took."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Be rid of it, with all that is on it, once nobody runs in it."""
        self._holder.kill()

    @property
    def _ballast(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self._folder.absolute()}/ballast")

    def _is_mounted(self) -> bool:
        with contextlib.suppress(OSError):
            mounts = Path(f"/proc/{self._holder.pid}/mountinfo").read_text(encoding="utf-8")
            return f" {self._folder.absolute()} " in mounts
        return False
