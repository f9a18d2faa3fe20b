"""Whom runners become where nobody is named."""

import logging
import os
import pwd
from types import SimpleNamespace

import pytest

from trinity_bus.runners.fork_server import runner_user


@pytest.mark.parametrize(
    ("named", "is_root", "users", "becomes"),
    [
        ("nobody", True, {"workflows"}, "nobody"),
        (None, True, {"workflows"}, "workflows"),
        (None, True, set(), None),
        (None, False, {"workflows"}, None),
    ],
)
def test_an_explorer_that_is_root_has_runners_that_are_not_where_the_image_has_their_user(
    named: str | None,
    is_root: bool,
    users: set[str],
    becomes: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = {name: SimpleNamespace(pw_name=name) for name in users}
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)
    with caplog.at_level(logging.WARNING):
        assert runner_user(named) == becomes
    assert ("workflows run as root" in caplog.text) == (is_root and becomes is None)
