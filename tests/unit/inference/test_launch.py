"""An engine ends with its last user, whatever the imports before it have left behind."""

import contextlib
import importlib
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, cast

import pytest

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference import launch


class FakeEngine:
    """FAKE: vLLM's."""

    def __init__(self, *_: object, **__: object) -> None:
        self.logger_manager = None


def module(name: str, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def test_an_error_that_an_import_has_kept_does_not_keep_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[ImportError] = []

    def import_vllm(_: ExplorerSettings) -> None:
        # As modules with an optional part do: who has imported them is among the frames of its traceback.
        try:
            importlib.import_module("no_such_optional_part")
        except ImportError as error:
            kept.append(error)

    for fake in (
        module("vllm"),
        module("vllm.envs", disable_envs_cache=lambda: None, enable_envs_cache=lambda: None),
        module("vllm.v1"),
        module("vllm.v1.engine"),
        module("vllm.v1.engine.async_llm", AsyncLLM=FakeEngine),
        module("vllm.v1.executor", Executor=cast("Any", module("executor", get_class=lambda _: None))),
        module("vllm.v1.metrics"),
        module("vllm.v1.metrics.loggers", PrometheusStatLogger=object),
    ):
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(launch, "import_vllm", import_vllm)
    monkeypatch.setattr(launch, "_configuration", lambda *_: None)
    monkeypatch.setattr(launch, "_start_method", lambda *_: "")
    monkeypatch.setattr(launch, "_pinned", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(launch, "_starting", lambda _: contextlib.nullcontext())

    engine = launch.launch(ExplorerSettings(model_path="model"), cast("Any", None), threading.Event())
    ended = weakref.ref(engine)
    del engine
    assert kept
    assert ended() is None
