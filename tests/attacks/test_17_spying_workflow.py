"""Workflow code that looks for the explorer's password: in its environment, its descriptors, the processes above it.

Real processes, started as a service of an explorer starts them; FAKE is the engine. A workflow that is root with all
capabilities finds everything: so the tests run without those that look into any process, as containers do.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MARKER = "hunter2-of-the-explorer"
OTHER = "hunter3-of-the-operator"
LIMIT_S = 120
_PR_CAPBSET_DROP = 24
_CAPABILITIES = {"SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38}
_NOBODY = 65534


def as_in_a_container() -> None:
    """Give up what a container lacks; only root can, and need."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in _CAPABILITIES.values():
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def spy(**environment: str) -> tuple[dict[str, Any], str]:
    """What a workflow finds in an explorer that was started with these variables; and what the explorer logged."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.mesh.standalone_runners", MARKER[::-1]],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("TRINITY_BUS_")},
            "TRINITY_BUS_EXPLORER__WORKFLOW_MODULES": "tests.support.fakes.rogue_workflows",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={OTHER}",
            "HF_TOKEN": OTHER,
            "LANG": "C.UTF-8",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=as_in_a_container,
    )
    assert done.returncode == 0, done.stderr
    assert MARKER not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    found["variables"] = set(found["variables"])
    return found, done.stderr


def assert_nothing_found(found: dict[str, Any]) -> None:
    assert found["environment"] == []
    assert found["variables"] & {"HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"} == set()
    assert not any(name.startswith("TRINITY_BUS_") for name in found["variables"])
    # The link to the explorer, and the pair by which the event loop wakes itself up; no file but the empty one.
    sockets = [name for name in found["descriptors"] if name.startswith("socket:")]
    assert len(sockets) <= 3
    assert {name for name in found["descriptors"] if name.startswith("/")} <= {"/dev/null"}
    refused = {"Permission denied", "Operation not permitted"}
    explorer = found["explorer"]
    assert {explorer[what] for what in ("environ", "mem", "root", "ptrace")} <= refused, explorer
    # Root may see how many files it has open, and open none of them.
    assert explorer["fd"] in refused | {"not there"}, explorer
    between = [places for name, places in found.items() if name.startswith("between")]
    assert len(between) == 2
    assert all("found" not in places.values() for places in between), between


def test_a_password_of_the_environment_is_found_nowhere() -> None:
    """And variables that the operator names are given, and no other."""
    found, log = spy(
        TRINITY_BUS_KAFKA__SASL_PASSWORD=MARKER,
        TRINITY_BUS_EXPLORER__RUNNER_ENVIRONMENT="JUDGE_KEY",
        JUDGE_KEY="of the judge",
        OTHER_KEY="of another one",
    )
    assert_nothing_found(found)
    assert found["variables"] & {"JUDGE_KEY", "OTHER_KEY"} == {"JUDGE_KEY"}
    assert ("workflows run as root" in log) is (os.geteuid() == 0), "an explorer says that its workflows are root"


def test_a_password_of_a_file_is_found_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(MARKER + "\n")
    found, _ = spy(TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE=str(secret))
    assert_nothing_found(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give runners another user")
def test_runners_are_another_user_and_do_not_become_root_again() -> None:
    found, log = spy(TRINITY_BUS_KAFKA__SASL_PASSWORD=MARKER, TRINITY_BUS_EXPLORER__RUNNER_USER="nobody")
    assert found["user"] == _NOBODY
    assert_nothing_found(found)
    assert "run as root" not in log
