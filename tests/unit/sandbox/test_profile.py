"""The seccomp profile that the compose stack gives explorers: a sandbox can be had in it, and nothing else is new."""

import ctypes
import ctypes.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
        [sys.executable, "-c", _SANDBOXED, json.dumps(profile)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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
