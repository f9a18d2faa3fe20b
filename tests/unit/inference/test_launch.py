"""An engine ends with its last user, whatever the imports before it have left behind; what it died of is told."""

import contextlib
import importlib
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from trinity_bus.chat import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.config.mesh import Dtype, computed_dtype
from trinity_bus.errors import ConfigError
from trinity_bus.inference import launch
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.errors import EngineDeadError, EngineStartError
from trinity_bus.weights.vllm import plugin


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
        module("vllm.v1.engine.logprobs", LogprobsProcessor=type("LogprobsProcessor", (), {})),
        module("vllm.v1.executor", Executor=cast("Any", module("executor", get_class=lambda _: None))),
        module("vllm.v1.metrics"),
        module("vllm.v1.metrics.loggers", PrometheusStatLogger=object),
    ):
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(launch, "import_vllm", import_vllm)
    sized = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 8))
    monkeypatch.setattr(launch, "_configuration", lambda *_: sized)
    monkeypatch.setattr(launch, "_start_method", lambda *_: "")
    monkeypatch.setattr(launch, "_pinned", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(launch, "_starting", lambda *_: contextlib.nullcontext())

    engine = launch.launch(ExplorerSettings(model_path="model"), cast("Any", None), threading.Event())
    ended = weakref.ref(engine)
    del engine
    assert kept
    assert ended() is None


@pytest.mark.parametrize(("asked", "held"), [(0, None), (2, 0), (3, 2), (4, 4)])
def test_a_set_of_as_many_as_were_asked_about_is_not_held(
    asked: int, held: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Processor:
        num_logprobs = asked
        noted: list[Any]

        @property
        def logprobs(self) -> Any:
            return SimpleNamespace(append_fast=lambda *given: self.noted.append(given))

    monkeypatch.setitem(sys.modules, "vllm.v1.engine.logprobs", module("logprobs", LogprobsProcessor=Processor))
    launch._note_kept(vocabulary=4)
    processor = cast("Any", Processor())
    processor.noted = []
    # The drawn one, and all four as vLLM gathers them on a GPU: two were kept, unless all were asked about.
    logprobs = np.array([-0.5, -0.5, -0.9, *[-np.inf if asked < 4 else -2.0] * 2], np.float32)
    told = SimpleNamespace(logprob_token_ids=np.array([[3, 3, 1, 0, 2]]), logprobs=logprobs[None])
    processor._update_sample_logprobs(told)
    ((ids, drawn, _, (kept,)),) = processor.noted
    assert (ids, drawn) == ([3], [-0.5])
    assert (kept if kept is None else len(kept)) == held


def config_of(device: str, dtype: str) -> Any:
    """What of vLLM's configuration is looked at."""
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device), model_config=SimpleNamespace(dtype=f"torch.{dtype}")
    )


FLOAT32 = "set mesh.dtype to float32"


@pytest.mark.parametrize(
    ("codes", "config", "said", "advised"),
    [
        ([-signal.SIGILL], config_of("cpu", "bfloat16"), ": it was ended by SIGILL", FLOAT32),
        ([-signal.SIGSEGV], config_of("cpu", "float16"), ": it was ended by SIGSEGV", FLOAT32),
        ([-signal.SIGSEGV], config_of("cpu", "float32"), ": it was ended by SIGSEGV", None),
        ([-signal.SIGSEGV], config_of("cuda", "bfloat16"), ": it was ended by SIGSEGV", None),
        ([-signal.SIGILL], None, ": it was ended by SIGILL", None),
        (
            [0, -signal.SIGKILL],
            config_of("cuda", "bfloat16"),
            ": it was ended by SIGKILL",
            "lower explorer.max_num_seqs",
        ),
        ([1], config_of("cpu", "bfloat16"), ": it ended with status 1", None),
        ([0], config_of("cpu", "bfloat16"), "", None),
        ([], None, "", None),
    ],
)
def test_a_dead_engine_says_what_to_set(codes: list[int], config: Any, said: str, advised: str | None) -> None:
    told = launch.cause_of_death(codes, config)
    assert told.startswith(said)
    assert told[len(said) :] == "" if advised is None else advised in told


@pytest.mark.parametrize(
    ("dtype", "on_cpu", "computed"),
    [
        ("auto", True, "float32"),
        ("auto", False, "bfloat16"),
        ("bfloat16", True, "bfloat16"),
        ("float16", False, "float16"),
    ],
)
def test_types_follow_from_setting_and_device_alone(dtype: Dtype, computed: str, *, on_cpu: bool) -> None:
    assert computed_dtype(dtype, on_cpu=on_cpu) == computed


def test_tensors_of_another_type_are_no_line_each(caplog: pytest.LogCaptureFixture) -> None:
    vllms = logging.getLogger("vllm.model_executor.models.utils")
    vllms.addFilter(plugin._is_no_cast)
    try:
        vllms.warning("Attempted to load weight %s with dtype %s into parameter with dtype %s", "a", "b", "c")
        vllms.warning("something else")
    finally:
        vllms.removeFilter(plugin._is_no_cast)
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_an_engine_that_is_gone_tells_nothing_new_of_responses() -> None:
    engine = InferenceEngine(ExplorerSettings())
    engine._dead = EngineDeadError("killed")
    assert engine._so_far("0", [5, 0], 0) == [Completion(), Completion()]


def test_another_type_than_the_trainers_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = InferenceEngine(ExplorerSettings())
    engine._llm = cast("Any", SimpleNamespace(model_config=SimpleNamespace(dtype="torch.bfloat16")))
    for told in (None, "float32", "float32", "bfloat16"):
        engine._compare_types(told)
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "the trainer computes in float32 and this engine in bfloat16:"
    ]


@pytest.mark.parametrize(
    ("options", "on_cpu", "message"),
    [
        ({"block_size": 32}, True, None),
        ({"blok_size": 32}, True, "blok_size is none; did you mean block_size?"),
        ({"kv_cache_memory_bytes": 1}, True, "kv_cache_memory_bytes cannot be set on a CPU: set explorer.cpu_kvcache"),
        ({"kv_cache_memory_bytes": 1}, False, None),
        ({"enable_chunked_prefill": True}, True, "enable_chunked_prefill cannot be set on a CPU: there a prompt"),
        ({"enable_chunked_prefill": True}, False, None),
        ({"long_prefill_token_threshold": 16}, True, "long_prefill_token_threshold cannot be set on a CPU: there a"),
        ({"max_num_scheduled_tokens": 64}, True, "max_num_scheduled_tokens cannot be set on a CPU: there no prompt"),
        ({"enable_expert_parallel": True}, True, "enable_expert_parallel cannot be set on a CPU: there vLLM's kernel"),
        ({"enable_expert_parallel": True}, False, None),
    ],
)
def test_what_is_passed_through_decides_nothing_that_is_decided_here(
    options: dict[str, Any], message: str | None, *, on_cpu: bool
) -> None:
    arguments: dict[str, Any] = {"model": "m", **({"kv_cache_memory_bytes": 2} if on_cpu else {})}
    known = ["model", "block_size", *launch._NOT_ON_CPUS]
    settings = ExplorerSettings(engine_options=options)
    if message is None:
        launch._add_options(arguments, settings, known, on_cpu=on_cpu)
        assert arguments.items() >= options.items()
        return
    with pytest.raises(EngineStartError, match=rf"^explorer\.engine_options: {re.escape(message)}"):
        launch._add_options(arguments, settings, known, on_cpu=on_cpu)


def test_nobody_else_may_enter_where_processes_meet_and_nothing_stays_but_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meeting = launch._MEETING
    monkeypatch.delenv(meeting, raising=False)
    with launch.private_sockets():
        folder = Path(os.environ[meeting])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "socket").touch()
    assert not folder.exists()
    assert meeting not in os.environ
    monkeypatch.setenv(meeting, str(tmp_path))
    with launch.private_sockets():
        assert os.environ[meeting] == str(tmp_path)
    assert tmp_path.exists()


SHORT = '{"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default"}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, r"config.json does not exist: give mesh.model_path the folder"),
        ("[1]", "is not the configuration of a model"),
        ("{", "is not JSON"),
        (SHORT, r"mesh.max_model_len is 1024, .* 64 positions: lower mesh.max_model_len to 64"),
        # What only vLLM can judge is left to it.
        ('{"max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}}', None),
        ('{"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 64}', None),
        ('{"n_positions": 64}', None),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, text: str | None, why: str | None
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with contextlib.nullcontext() if why is None else pytest.raises(ConfigError, match=why):
        launch.check_model(ExplorerSettings(model_path=str(tmp_path), max_model_len=1024))
    if text == SHORT:
        launch.check_model(ExplorerSettings(model_path=str(tmp_path), max_model_len=64))


@pytest.mark.parametrize(("settings", "threads"), [({}, "1"), ({"cpu_threads": 1}, "1"), ({"cpu_threads": 2}, "2")])
def test_the_setting_of_threads_wins_over_the_environment_of_services(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], threads: str
) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "1"})
    launch.prepare_environment(ExplorerSettings(**settings))
    assert os.environ["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(("own", "of_engine", "method"), [(1, 2, "fork"), (2, 1, "fork"), (2, 2, None)])
def test_an_engine_is_forked_unless_it_could_wait_for_threads_of_its_parent(
    own: int, of_engine: int, method: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: own)
    assert launch._start_method(of_engine, config_of("cpu", "float32")) == method


def test_torch_has_one_thread_from_its_import_on_and_a_forked_engine_those_of_the_settings() -> None:
    # In a process of its own, since torch is imported here already
    program = """
import multiprocessing, os, sys
os.environ["OMP_NUM_THREADS"] = "2"
from trinity_bus.inference import launch
from trinity_bus.weights.vllm import plugin

def child(threads):
    plugin.register()
    import torch
    x = torch.ones(512, 512)
    threads.send((torch.get_num_threads(), float((x @ x)[0, 0]), len(os.listdir("/proc/self/task"))))

launch._import_torch()
import torch
assert torch.get_num_threads() == 1
plugin.forked_threads = 2
here, there = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(there,))
process.start()
assert here.poll(60), "the child waits for threads that are not there"
print(*here.recv())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    threads, product, tasks = done.stdout.split()
    assert (threads, product) == ("2", "512.0")
    assert int(tasks) >= 2
