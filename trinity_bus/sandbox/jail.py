"""``python -I -S jail.py LIMITS COMMAND...``: becomes a command without a network, in limits that the kernel keeps.

The command is the second process of namespaces of its own: its processes see no others, no network and no loopback, and
when the first of them dies the kernel kills all. It ends with whoever has started it. Standard library alone: it is
started for each command.

Failures: where this cannot be had it says why on standard error and ends with ``REFUSED``; nothing is run.
"""

import ctypes
import json
import os
import resource
import signal
import sys

REFUSED = 120
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def main() -> int:
    """Give up what the command must not have, run it, and return how it ended."""
    limits = json.loads(sys.argv[1])
    try:
        uid, gid = os.geteuid(), os.getegid()
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWPID | os.CLONE_NEWIPC)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (pathlib takes long to import)
                file.write(text)
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


def _end_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _run(command: list[str]) -> None:
    """Be the first process of the namespace: start the command, collect what dies, and end with the command."""
    child = os.fork()
    if child == 0:
        try:
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
