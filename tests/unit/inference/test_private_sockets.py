import os
import stat
from pathlib import Path

import pytest

from trinity_bus.inference.launch import private_sockets

MEETING = "VLLM_RPC_BASE_PATH"


def test_nobody_else_may_enter_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEETING, raising=False)
    with private_sockets():
        folder = Path(os.environ[MEETING])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "socket").touch()
    assert not folder.exists()
    assert MEETING not in os.environ


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MEETING, str(tmp_path))
    with private_sockets():
        assert os.environ[MEETING] == str(tmp_path)
    assert tmp_path.exists()
