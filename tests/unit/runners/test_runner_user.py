"""Whom runners become where nobody is named."""

import logging
import os
import pwd
from types import SimpleNamespace

import pytest

from trinity_bus.runners.fork_server import runner_user


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
