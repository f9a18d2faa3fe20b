"""What runners are given, whom they become, and that it is said where no sandbox can be had."""

import logging
import os
import pwd
from types import SimpleNamespace

import pytest

from trinity_bus.runners.confinement import confine, environment
from trinity_bus.runners.fork_server import runner_user
from workers.explorer.service import _tell_of_sandbox

GIVEN = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "OMP_NUM_THREADS": "8",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    "OTEL_EXPORTER_OTLP_HEADERS": "api-key=hunter2",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=hunter2",
    "TRINITY_BUS_KAFKA__SASL_PASSWORD": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "HF_TOKEN": "hunter2",
    "JUDGE_KEY": "hunter3",
}
HARMLESS = {"PATH", "LC_ALL", "OTEL_EXPORTER_OTLP_ENDPOINT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_runners_are_given_what_is_harmless_and_what_the_operator_names() -> None:
    assert set(environment(GIVEN, None)) == HARMLESS
    assert environment(GIVEN, None)["OMP_NUM_THREADS"] == "8"
    assert set(environment(GIVEN, "JUDGE_KEY,ABSENT")) == HARMLESS | {"JUDGE_KEY"}


@pytest.mark.parametrize("user", ["no-such-user-here", "4000000000"])
def test_a_user_that_there_is_not_is_an_error(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.runners.confinement.prctl", lambda *_: None)
    with pytest.raises(KeyError):
        confine(user)


async def test_an_explorer_says_at_its_start_why_no_sandbox_can_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused() -> str:
        return "no namespaces can be had here"

    monkeypatch.setattr("workers.explorer.service.why_no_sandbox", refused)
    await _tell_of_sandbox()
    (line,) = caplog.messages
    assert line == "rewards and tools that run programs fail here: no namespaces can be had here"


@pytest.mark.parametrize(
    ("named", "is_root", "becomes"), [("nobody", True, "nobody"), (None, True, "workflows"), (None, False, None)]
)
def test_runners_of_root_become_the_images_user(
    named: str | None,
    is_root: bool,
    becomes: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = {"workflows": SimpleNamespace(pw_name="workflows")}
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)
    with caplog.at_level(logging.WARNING):
        assert runner_user(named) == becomes
        assert not caplog.text
        entries.clear()
        assert runner_user(named) == named
    assert ("workflows run as root" in caplog.text) == (is_root and named is None)
