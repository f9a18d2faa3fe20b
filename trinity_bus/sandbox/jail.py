"""``python -I -S jail.py LIMITS COMMAND...``: becomes a command without a network, in limits that the kernel keeps.

The command is the second process of namespaces of its own: its processes see no others, no network and no loopback, and
when the first of them dies the kernel kills all. It ends with whoever has started it. It writes in its working folder
and nowhere else: all file systems are read-only, and it has no capability to take that back, be it root in its
namespace. Standard library alone: it is started for each command.

Failures: where this cannot be had it says why on standard error and ends with ``REFUSED``; nothing is run.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys

REFUSED = 120
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR = 442
"""Of every architecture. glibc has had a function for it since 2.36."""
_AT_FDCWD, _AT_RECURSIVE, _RDONLY = -100, 0x8000, 1
_PR_CAPBSET_DROP = 24


def main() -> int:
    """Give up what the command must not have, run it, and return how it ended."""
    limits = json.loads(sys.argv[1])
    try:
        uid, gid = os.geteuid(), os.getegid()
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWPID | os.CLONE_NEWIPC)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (pathlib takes long to import)
                file.write(text)
        _write_here_alone()
        _end_with_parent()
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        first = os.fork()
    except OSError as error:
        print(f"no namespaces can be had here: {error}", file=sys.stderr)
        return REFUSED
    if first == 0:
        _end_with_parent()
        _run(sys.argv[2:])
    _, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status) % 256


def _write_here_alone() -> None:
    """Mount everything read-only but the working folder."""
    here = os.getcwd().encode()  # noqa: PTH109 (likewise)
    _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
    _mount(here, here, _MS_BIND)
    _set_read_only(b"/", _AT_RECURSIVE, _RDONLY, 0)
    _set_read_only(here, 0, 0, _RDONLY)
    # Where it is now is still the folder under the mount.
    os.chdir(here)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    if _libc.mount(source, target, None, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), "mount")


def _set_read_only(path: bytes, flags: int, to_set: int, to_clear: int) -> None:
    attributes = struct.pack("=4Q", to_set, to_clear, 0, 0)
    if _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, flags, attributes, ctypes.c_size_t(len(attributes))):
        raise OSError(ctypes.get_errno(), "mount_setattr")


def _without_capabilities() -> None:
    """Have the next program get none, root's neither."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "prctl")


def _end_with_parent() -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _run(command: list[str]) -> None:
    """Be the first process of the namespace: start the command, collect what dies, and end with the command."""
    child = os.fork()
    if child == 0:
        try:
            _without_capabilities()
            os.execvp(command[0], command)  # noqa: S606 (the sandbox's command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    sys.exit(main())
