from pathlib import Path
from typing import Any, Self

import pytest

from trinity_bus.config import Settings
from workers.cli.demo import begun_first
from workers.demo import preloads
from workers.demo.subjects import DemoOptions


class FakePreload:
    """FAKE: a process that imports, which has when it is told so."""

    def __init__(self, name: str, made: "list[FakePreload]", **told: Any) -> None:
        self.name, self.told, self.has_loaded = name, told, False
        self._made = made
        made.append(self)

    def branch(self, functions: Any, *, name: str, **told: Any) -> "FakePreload":
        return FakePreload(name, self._made, of=self.name, functions=functions, **told)

    def look(self) -> None:
        """Nothing is heard."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def may_begin(self) -> bool:
        turn = self.told["turn"]
        return turn is None or bool(turn())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakePreload]:
    found: list[FakePreload] = []

    def begin(functions: Any, *, name: str, **told: Any) -> FakePreload:
        return FakePreload(name, found, functions=functions, **told)

    monkeypatch.setattr("workers.cli.demo.Preload.begin", begin)
    return found


def begun(
    tmp_path: Path, made: list[FakePreload], **explorer: object
) -> tuple[preloads.Preloads, dict[str, FakePreload]]:
    settings = Settings()
    settings = settings.model_copy(update={"explorer": settings.explorer.model_copy(update=explorer)})
    options = DemoOptions(run_dir=tmp_path / "run")
    with begun_first(options) as shared, preloads.begun(settings, options, shared) as found:
        return found, {each.name: each for each in made}


def test_beside_vllm_those_begin_for_whom_there_is_a_core_and_the_broker_is_first(
    tmp_path: Path, made: list[FakePreload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloads, "available_cores", lambda: [0, 1])
    found, named = begun(tmp_path, made)
    assert named["torch"].may_begin()
    assert named["vllm"].may_begin()
    waiting = [named[name] for name in ("runners", "megatron", "console")]
    found.broker_serves()
    for place, each in enumerate(waiting):
        assert [one.may_begin() for one in waiting] == [True] * (place + 1) + [False] * (2 - place)
        each.has_loaded = True
    monkeypatch.setattr(preloads, "available_cores", lambda: list(range(8)))
    _, named = begun(tmp_path / "roomy", made)
    assert all(each.may_begin() for name, each in named.items() if name != "preload"), "there is a core for each"


def test_what_runners_are_forked_from_is_given_as_little_as_they(
    tmp_path: Path, made: list[FakePreload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS", "of others")
    monkeypatch.setenv("MINE", "given")
    _, named = begun(tmp_path, made, runner_environment="MINE")
    for name in ("preload", "runners"):
        assert "CREDENTIALS" not in named[name].told["env"]
    assert named["runners"].told["env"]["MINE"] == "given"
    assert named["torch"].told["env"]["CREDENTIALS"] == "of others"
    assert named["runners"].told["of"] == "preload"


def test_a_python_of_the_users_is_started_by_the_explorer(tmp_path: Path, made: list[FakePreload]) -> None:
    found, named = begun(tmp_path, made, runner_python=Path("/usr/bin/python3"))
    assert found.runners is None
    assert "runners" not in named


def test_imports_before_a_fork_ask_no_cuda_for_gpus(tmp_path: Path, made: list[FakePreload]) -> None:
    """What has begun to use CUDA cannot be forked."""
    _, named = begun(tmp_path, made)
    for name in ("torch", "vllm", "megatron"):
        assert named[name].told["env"]["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
