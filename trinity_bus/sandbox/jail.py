"""``python -I -S jail.py LIMITS COMMAND...``: becomes a command without a network, in limits that are kept for it.

The command is the second process of namespaces of its own: its processes see no others, no network and no loopback, and
when the first of them dies the kernel kills all. It ends with whoever has started it. It writes in its working folder
and nowhere else: all file systems are read-only and without devices, and it has no capability to take that back, be it
root in its namespace. ``/dev`` and ``/run`` are its own, and so is ``/proc``: an empty one, where this machine hides
parts of its own (a container's is so) and the kernel therefore gives none.

A filter of system calls (seccomp) leaves sockets of IPv4 and IPv6, which lead nowhere, and connected pairs. The rest
lead out of a namespace of networks: a Unix socket is a file, vsock ends at the machine below. What would get around
that, or hold memory that no process shows, is to the command as if this kernel had none of it.

Linux limits each process. What all of them take together this program looks at, many times a second, beside the
command: one that takes more is killed with all that it has started. So it may take a little more for a moment.

Standard library alone: it is started for each command.

Failures: where this cannot be had it says why on standard error and ends with ``REFUSED``; nothing is run. What is
killed for its sums ends with ``KILLED``, and the last line of standard error says for which. A folder in which files
cannot be counted counts as too full.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time

REFUSED = 120
KILLED = 137
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP = 24
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_MOUNT_SETATTR = 442  # of every architecture; glibc has had a function for it since 2.36
_AT_FDCWD, _AT_RECURSIVE, _RDONLY, _NOSUID, _NODEV = -100, 0x8000, 1, 2, 4
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LOOK_S = 0.02
# Limits of each process, which the kernel keeps, and what they are called in ``SandboxLimits``.
_EACH = {"CPU": "cpu_s", "AS": "memory_bytes", "FSIZE": "file_bytes", "NOFILE": "open_files"}
_BLOCK = 512
_FAR = 2000

_REFUSED_EVERYWHERE = (
    *range(425, 428),  # io_uring: it opens sockets that no filter sees
    *range(428, 434),  # open_tree, move_mount, fsopen, fsconfig, fsmount, fspick
    435,  # clone3, whose flags no filter sees; libraries fall back on clone
    *(_MOUNT_SETATTR, 447),  # and memfd_secret
)
_MACHINES = {
    # What the kernel calls it; socket, socketpair, clone; what is refused: unshare, setns, mount, umount2, pivot_root,
    # add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at, memfd_create, shmget
    "x86_64": (
        *(0xC000003E, 41, 53, 56),
        (272, 308, 165, 166, 155, 248, 249, 250, 321, 298, 323, 304, 319, 29),
    ),
    "aarch64": (
        *(0xC00000B7, 198, 199, 220),
        (97, 268, 40, 39, 41, 217, 218, 219, 280, 241, 282, 265, 279, 194),
    ),
}
_NEW_NAMESPACES = 0x7E020000
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def main() -> int:
    limits = json.loads(sys.argv[1])
    try:
        outer = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        uid, gid = os.geteuid(), os.getegid()
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWPID | os.CLONE_NEWIPC)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (pathlib takes long to import)
                file.write(text)
        _write_here_alone(limits["file_bytes"])
        _end_with_parent()
        told, tell = os.pipe()
        first = os.fork()
    except OSError as error:
        print(f"no namespaces can be had here: {error}", file=sys.stderr)
        return REFUSED
    if first == 0:
        try:
            _end_with_parent()
            own = _mount_proc()
            # The first process of its namespace, and the one that watches it, are two more.
            each = {kind: limits[name] for kind, name in _EACH.items()} | {"NPROC": limits["processes"] + 2, "CORE": 0}
            for kind, value in each.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (value, value))
            _without_capabilities()
            _filter_calls()
        except OSError as error:
            print(f"no namespaces can be had here: {error}", file=sys.stderr)
            os._exit(REFUSED)
        os.write(tell, b"own" if own else b"outer")
        _run(sys.argv[2:])
    os.close(tell)
    own = os.read(told, 8) == b"own"
    watched = _Watched(first, limits, os.open("/proc", os.O_RDONLY) if own else outer, own=own)
    ends, wait_s = select.poll(), 0.0
    ends.register(os.pidfd_open(first), select.POLLIN)
    while not ends.poll(wait_s * 1000):
        began = time.perf_counter()
        if (excess := watched.excess()) is not None:
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
            print(f"\nkilled: more than {excess}", file=sys.stderr)
            return KILLED
        # However many files there are, it takes a quarter of a core at most.
        wait_s = max(_LOOK_S, 3 * (time.perf_counter() - began))
    _, status = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(status) % 256


class _Watched:
    """What the processes of a namespace take together; ``proc`` is the namespace's (``own``), or this machine's."""

    def __init__(self, first: int, limits: dict[str, int], proc: int, *, own: bool) -> None:
        self._limits = limits
        self._proc = proc
        self._first = "1" if own else str(first)
        self._namespace = None if own else os.stat(f"{first}/ns/pid", dir_fd=proc).st_ino
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._device = os.fstat(self._folder).st_dev

    def excess(self) -> str | None:
        there = os.listdir(self._proc)  # noqa: PTH208 (likewise)
        pids = [pid for pid in there if pid.isdigit() and pid != self._first and self._is_of_it(pid)]
        told = [self._read(f"{pid}/stat").rpartition(b")")[2].split() for pid in pids]
        # Of one that is gone meanwhile there is nothing to be read.
        told = [one for one in told if one]
        if sum(int(one[17]) for one in told) > self._limits["processes"]:
            return f"{self._limits['processes']} processes and threads"
        most = self._limits["memory_bytes"]
        # What several share counts once, which takes the kernel longer to tell.
        if sum(int(one[21]) for one in told) * resource.getpagesize() > most and sum(map(self._memory, pids)) > most:
            return f"{most} bytes of memory"
        return self._excess_of_files(pids)

    def _excess_of_files(self, pids: list[str]) -> str | None:
        taken, files, several = 0, 0, set[int]()
        folders = [(self._folder, ".")]
        with contextlib.ExitStack() as kept:
            while folders:
                base, path = folders.pop()
                # However deep it is nested: no path may be longer than 4096 characters.
                far = len(path) > _FAR
                try:
                    with contextlib.ExitStack() as brief:
                        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
                        (kept if far else brief).callback(os.close, folder)
                        for entry in brief.enter_context(os.scandir(folder)):
                            files += 1
                            if files > self._limits["folder_files"]:
                                return f"{self._limits['folder_files']} files in its folder"
                            found = _found(entry)
                            if found is None:
                                continue
                            taken += 0 if found.st_ino in several else found.st_blocks * _BLOCK
                            if stat.S_ISDIR(found.st_mode):
                                folders.append((folder, entry.name) if far else (base, f"{path}/{entry.name}"))
                            elif found.st_nlink > 1:
                                several.add(found.st_ino)
                except (FileNotFoundError, NotADirectoryError):
                    # The command has changed it meanwhile.
                    continue
                except OSError as error:
                    return f"can be counted in its folder: {error.strerror}"
        taken += sum(self._removed(pids).values())
        return f"{self._limits['folder_bytes']} bytes in its folder" if taken > self._limits["folder_bytes"] else None

    def _removed(self, pids: list[str]) -> dict[int, int]:
        """Bytes of files that have no name any more, and are open."""
        found = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                opened = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
                try:
                    for name in os.listdir(opened):  # noqa: PTH208 (likewise)
                        with contextlib.suppress(OSError):
                            file = os.stat(name, dir_fd=opened)
                            if file.st_nlink == 0 and file.st_dev == self._device:
                                found[file.st_ino] = file.st_blocks * _BLOCK
                finally:
                    os.close(opened)
        return found

    def _is_of_it(self, pid: str) -> bool:
        if self._namespace is None:
            return True
        try:
            return os.stat(f"{pid}/ns/pid", dir_fd=self._proc).st_ino == self._namespace
        except OSError:
            # Gone, or of somebody else.
            return False

    def _memory(self, pid: str) -> int:
        for line in self._read(f"{pid}/smaps_rollup").splitlines():
            if line.startswith((b"Pss:", b"SwapPss:")):
                return int(line.split()[1]) * 1024
        return 0

    def _read(self, path: str) -> bytes:
        try:
            file = os.open(path, os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return b""
        try:
            return os.read(file, 1 << 14)
        except ProcessLookupError:
            return b""
        finally:
            os.close(file)


def _found(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write_here_alone(shared_bytes: int) -> None:
    """Mount everything read-only but the working folder, with a ``/dev`` and a ``/run`` of its own."""
    _mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
    here = os.getcwd().encode()  # noqa: PTH109 (likewise)
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES}
    folder = os.open(".", os.O_PATH)
    for path in (b"/dev", b"/run"):
        if os.path.isdir(path):  # noqa: PTH112 (likewise)
            _mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=1m,mode=755")
    for name, device in devices.items():
        os.close(os.open(f"/dev/{name}", os.O_WRONLY | os.O_CREAT))
        _mount(b"/proc/self/fd/%d" % device, f"/dev/{name}".encode(), None, _MS_BIND)
    os.mkdir("/dev/shm")  # noqa: PTH102, S108 (likewise; the namespace's own)
    # Where the folder itself was below one of those.
    os.makedirs(here, exist_ok=True)  # noqa: PTH103 (likewise)
    _mount(b"/proc/self/fd/%d" % folder, here, None, _MS_BIND)
    _set_attributes(b"/", _AT_RECURSIVE, _RDONLY | _NOSUID | _NODEV, 0)
    _set_attributes(here, 0, 0, _RDONLY)
    for name in devices:
        _set_attributes(f"/dev/{name}".encode(), 0, 0, _RDONLY | _NODEV)
    _mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=%d,nr_inodes=1024" % shared_bytes)
    # Where it is now is still the folder under the mount.
    os.chdir(here)
    for file in (folder, *devices.values()):
        os.close(file)


def _mount_proc() -> bool:
    """Mount the namespace's own ``/proc``, or an empty folder. Returns which: whether it is the former."""
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    try:
        _mount(b"proc", b"/proc", b"proc", flags)
    except PermissionError:
        _mount(b"tmpfs", b"/proc", b"tmpfs", flags, b"size=4k")
        return False
    return True


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), options):
        raise OSError(ctypes.get_errno(), f"mount {target.decode(errors='replace')}: {os.strerror(ctypes.get_errno())}")


def _set_attributes(path: bytes, flags: int, to_set: int, to_clear: int) -> None:
    attributes = struct.pack("=4Q", to_set, to_clear, 0, 0)
    if _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, flags, attributes, ctypes.c_size_t(len(attributes))):
        raise OSError(ctypes.get_errno(), f"mount_setattr: {os.strerror(ctypes.get_errno())}")


def _filter_calls() -> None:
    """Keep the command from what leads out of its namespaces, or is counted nowhere (seccomp, classic BPF)."""
    if os.uname().machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {os.uname().machine}")
    code = filter_program(os.uname().machine)
    program = ctypes.create_string_buffer(code)
    # struct sock_fprog, with the padding that it has where pointers have 64 bits.
    told = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(program))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, told, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def filter_program(machine: str) -> bytes:
    """Return the filter for a kind of processor; of little-endian ones an argument's lower half comes first."""
    architecture, socket, socketpair, clone, refused = _MACHINES[machine]
    number, first, second = 0, 16, 24  # in struct seccomp_data
    load, equal, at_least, any_bit, mask, end = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    absent, no_family = _ERRNO | errno.ENOSYS, _ERRNO | errno.EAFNOSUPPORT
    # (code, steps over where it holds, over where not, value)
    steps = [
        *((load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, _KILL)),
        # A second table of the same calls (x32) is beyond this.
        *((load, 0, 0, number), (at_least, 0, 1, 0x40000000), (end, 0, 0, absent)),
    ]
    for call in (*refused, *_REFUSED_EVERYWHERE):
        steps += [(equal, 0, 1, call), (end, 0, 0, absent)]
    steps += [
        *((equal, 0, 4, clone), (load, 0, 0, first), (any_bit, 0, 1, _NEW_NAMESPACES), (end, 0, 0, absent)),
        (end, 0, 0, _ALLOW),
        *((equal, 0, 4, socket), (load, 0, 0, first), (equal, 1, 0, 2), (equal, 0, 9, 10), (end, 0, 0, _ALLOW)),
        # One of a pair of datagram sockets could be connected to another: only streams, and packets in sequence.
        *((equal, 0, 6, socketpair), (load, 0, 0, first), (equal, 0, 5, 1), (load, 0, 0, second), (mask, 0, 0, 0xF)),
        *((equal, 1, 0, 1), (equal, 0, 1, 5), (end, 0, 0, _ALLOW), (end, 0, 0, no_family)),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


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
