"""The seccomp profile that the compose stack gives explorers: a sandbox can be had in it, and nothing else is new."""

import ctypes
import ctypes.util
import errno
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.sandbox.jail import filter_program

PROFILE = Path(__file__).parents[3] / "deploy" / "docker-compose" / "seccomp.json"
_ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000}
_COMPARED = {"SCMP_CMP_LT": 2, "SCMP_CMP_EQ": 4, "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7}

_SANDBOXED = """
import asyncio, os, sys
from tests.unit.sandbox.test_profile import confine
from trinity_bus.sandbox import Sandbox, why_no_sandbox
confine(sys.argv[1])
async def main():
    if (reason := await why_no_sandbox()) is not None:
        sys.exit(reason)
    async with Sandbox() as box:
        print((await box.exec(["sh", "-c", "echo runs; ls /proc | grep -c '^[0-9]'"])).stdout)
for flags in (os.CLONE_NEWUSER, os.CLONE_NEWNS, os.CLONE_NEWCGROUP):
    try:
        os.unshare(flags)
        print("unshared", flags)
    except PermissionError:
        pass
asyncio.run(main())
"""


class _Argument(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def confine(profile: str) -> None:
    """Be confined by a profile, as a container runtime does it."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    read = json.loads(profile)
    context = ctypes.c_void_p(library.seccomp_init(_ACTIONS[read["defaultAction"]] | read["defaultErrnoRet"]))
    for rule in read["syscalls"]:
        action = _ACTIONS[rule["action"]] | rule.get("errnoRet", 0)
        arguments = [
            _Argument(one["index"], _COMPARED[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", [])
        ]
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            # Of another architecture, or newer than the library.
            if number >= 0:
                given = (_Argument * len(arguments))(*arguments)
                assert library.seccomp_rule_add_array(context, action, number, len(arguments), given) == 0, name
    assert library.seccomp_load(context) == 0


def _confined(profile: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("not run: no libseccomp is here")
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", _SANDBOXED, json.dumps(profile)], cwd=root, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_a_sandbox_runs_in_it_and_no_other_namespace_can_be_had() -> None:
    done = _confined(json.loads(PROFILE.read_text()))
    assert (done.returncode, done.stdout.split()[0]) == (0, "runs"), done.stderr
    assert "unshared" not in done.stdout


def test_without_the_sandboxs_rules_the_reason_is_one_line() -> None:
    profile = json.loads(PROFILE.read_text())
    profile["syscalls"] = [rule for rule in profile["syscalls"] if "sandbox" not in rule.get("comment", "")]
    assert len(profile["syscalls"]) == len(json.loads(PROFILE.read_text())["syscalls"]) - 2
    done = _confined(profile)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("no namespaces can be had here: ")
    assert "docs/security.md" in line


def _decided(program: bytes, data: bytes) -> int:
    """What the kernel would do: the instructions of classic BPF that a filter of this project has."""
    steps, at, value = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        code, holds, otherwise, number = steps[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, number)
            case 0x54:
                value &= number
            case 0x06:
                return int(number)
            case 0x15 | 0x35 | 0x45:
                true = value == number if code == 0x15 else value >= number if code == 0x35 else bool(value & number)
                at += holds if true else otherwise
            case _:
                raise AssertionError(code)


_NUMBERS = {
    "x86_64": {"socket": 41, "socketpair": 53, "clone": 56, "unshare": 272, "mount": 165, "memfd_create": 319},
    "aarch64": {"socket": 198, "socketpair": 199, "clone": 220, "unshare": 97, "mount": 40, "memfd_create": 279},
}
_MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NAMES = ("socket", "socketpair", "clone", "unshare", "mount", "memfd_create", "io_uring_setup", "clone3", "read")


@given(
    st.sampled_from(sorted(_NUMBERS)),
    st.sampled_from(_NAMES),
    st.integers(0, 45) | st.integers(0, 2**64 - 1) | st.sampled_from([1 << bit for bit in range(64)]),
    st.integers(0, 15) | st.integers(0, 2**64 - 1),
)
def test_the_filter_allows_what_it_is_to(machine: str, name: str, first: int, second: int) -> None:
    _holds(machine, name, first, second)


@pytest.mark.parametrize("machine", sorted(_NUMBERS))
def test_the_filter_knows_each_family_and_each_kind_of_socket(machine: str) -> None:
    for family in range(64):
        _holds(machine, "socket", family, 1)
        for kind in range(16):
            _holds(machine, "socketpair", family, 0o4000 | kind)


def _holds(machine: str, name: str, first: int, second: int) -> None:
    numbers = {**_NUMBERS[machine], "io_uring_setup": 425, "clone3": 435, "read": 0 if machine == "x86_64" else 63}
    data = struct.pack("<IIQQQ4Q", numbers[name], _MACHINE[machine], 0, first, second, 0, 0, 0, 0)
    allowed, absent, no_family = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EAFNOSUPPORT
    family, kind = first % 2**32, second % 16
    expected = {
        "read": allowed,
        "socket": allowed if family in (2, 10) else no_family,
        "socketpair": allowed if family == 1 and kind in (1, 5) else no_family,
        "clone": absent if first & 0x7E020000 else allowed,
    }.get(name, absent)
    program = filter_program(machine)
    assert _decided(program, data) == expected
    # Another architecture's calls have other numbers; x32 has a second table.
    assert _decided(program, struct.pack("<II", numbers[name], 0x40000003) + data[8:]) == 0x80000000
    assert _decided(program, struct.pack("<I", numbers[name] | 0x40000000) + data[4:]) == absent
