"""What a service does with its secrets once it has read them: nobody else on the machine is to find them.

::

    settings read --keep_secrets--> no variable holds one, and no other process of this user can look into this one

A process started from then on inherits none; one that is forked instead (an engine's) keeps what this process's memory
holds, and is closed to others as well. What remains: a root who may trace processes, and whoever may read the files
that secrets lie in. Linux only; elsewhere the variables are unset, and no more.
"""

import ctypes
import hmac
import os
import sys
from pathlib import Path

from trinity_bus.config import forget_secrets
from trinity_bus.runtime.guard import prctl

_PR_SET_DUMPABLE = 4
# fields of ``/proc/self/stat`` after the process's name: where the environment lies that it was started with
_ENV_START, _ENV_END = 47, 48


def keep_secrets() -> None:
    """Take secrets out of the environment, and close this process to others of its user. Called once, at the start.

    OSError: the kernel refused.
    """
    before = set(os.environ)
    forget_secrets()
    if sys.platform == "linux":
        _wipe({name.encode() for name in before - set(os.environ)})
        # No other process of this user can attach, or read /proc/PID/environ, mem or root; and nothing is dumped.
        prctl(_PR_SET_DUMPABLE, 0)


def same_secret(given: str, secret: str) -> bool:
    """Whether somebody has shown a secret. The time that it takes tells nothing of it."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode(errors="surrogateescape"))


def _wipe(names: set[bytes]) -> None:
    # Where the kernel has put them: ``/proc/PID/environ`` shows that place, whatever was unset.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        # Not told to whoever may not trace this process, itself included in some sandboxes.
        return
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.partition(b"=")[0] in names:
            ctypes.memset(at, 0, len(entry))
        at += len(entry) + 1
