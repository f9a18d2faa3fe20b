"""A real explorer is killed amid long responses: the next one goes on with them, and every token is as it was drawn."""

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks._tiny_model import TinyShape, make_tiny_qwen3
from schemas import ExplorerHeartbeat, PartialResponses, RolloutFinished, Sampling, Task
from schemas.topics import TURNS
from tests.integration.explorer.explorers import NAME, Mesh, dispatch, mesh_of
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import PROGRAM, environment, unused
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.waiting import until
from tests.support.reference import mismatch
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runtime.process import Process, tail

pytestmark = pytest.mark.e2e

RUNS, LENGTH, KILLED_AT = 4, 2000, 1000
TURN_TOKENS = 64
TOLERANCE = 1e-3


@contextlib.contextmanager
def explorer(mesh: Mesh, folder: Path, model: Path, number: int) -> Iterator[Process]:
    settings = {
        "mesh__mode": "explore",
        "mesh__model_path": model,
        "mesh__dtype": "float32",
        "mesh__max_model_len": LENGTH + 64,
        "mesh__max_tokens": LENGTH,
        "explorer__name": NAME,
        "explorer__follows": "none",
        "explorer__heartbeat_s": 0.2,
        "explorer__turn_tokens": TURN_TOKENS,
    }
    log = folder / f"explorer-{number}.log"
    env = environment(mesh.settings.kafka, **settings) | {"OMP_NUM_THREADS": "1"}
    with (
        forked(PROGRAM, "run", "explorer", name=NAME, env=env, output=log, kind="vllm") as process,
        log_shown_on_failure(process, log),
    ):
        yield process


async def ready(mesh: Mesh, process: Process, folder: Path, number: int, former: str = "") -> str:
    log = folder / f"explorer-{number}.log"
    await until(lambda: bool(re.search("ready: ", tail(log, 200))) or process.poll() is not None, 250)
    assert process.poll() is None
    return await mesh.joined(former)


async def patiently[R](mesh: Mesh, kind: type[R], fits: Callable[[R], bool] = lambda _: True) -> R:
    """The next event that fits, however busy the machine is."""
    for _ in range(5):
        with contextlib.suppress(TimeoutError):
            return await mesh.event(kind, fits)
        assert not any(isinstance(event, RolloutFinished) for event in mesh.seen), mesh.seen[-3:]
    raise AssertionError(mesh.seen[-3:])


async def at_rest(mesh: Mesh, incarnation: str, least: int = 1) -> ExplorerHeartbeat:
    """The explorer's heartbeat when it has drawn so many tokens, and no more for a second."""
    tokens, same = -1, 0
    while same < 5:
        beat = await mesh.event(ExplorerHeartbeat, lambda beat: beat.incarnation == incarnation)
        same = same + 1 if least <= beat.tokens_generated == tokens else 0
        tokens = beat.tokens_generated
    return beat


@pytest.mark.timeout(900)
async def test_killed_amid_long_responses_it_costs_a_small_part_of_them(kafka: KafkaSettings, tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model", seed=0, shape=TinyShape(max_position_embeddings=LENGTH + 64))
    sampling = Sampling(max_tokens=LENGTH, ignore_eos=True)
    task = Task(task_id="long", workflow="math", prompt="t7 t8 t9", answer="42", sampling=sampling)
    async with mesh_of(Settings(kafka=unused(kafka))) as mesh:
        with explorer(mesh, tmp_path, model, 1) as process:
            first = await ready(mesh, process, tmp_path, 1)
            await mesh.send(dispatch(first, "long", task=task, repeat_times=RUNS, timeout_s=600))
            await patiently(mesh, ExplorerHeartbeat, lambda beat: beat.tokens_generated > RUNS * KILLED_AT)
            # Its engine is stopped before it is killed, so that it is known how much it has drawn.
            (engine,) = [
                child for child in psutil.Process(process.pid).children(recursive=True) if "EngineCore" in child.name()
            ]
            engine.suspend()
            beat = await at_rest(mesh, first)
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait(60) is not None
        (attempt,) = beat.running
        with explorer(mesh, tmp_path, model, 2) as process:
            second = await ready(mesh, process, tmp_path, 2, first)
            again = dispatch(second, "long", task=task, repeat_times=RUNS, timeout_s=600, attempt=2)
            await mesh.send(again.model_copy(update={"turns": attempt.turns}))
            finished = await patiently(mesh, RolloutFinished)
            last = await at_rest(mesh, second, RUNS * LENGTH - beat.tokens_generated)
        assert (finished.status, finished.error) == ("completed", None)
        async with mesh.bus.reader(TURNS, start="beginning") as reader:
            written = [received async for received in reader.replay()]
        (group,) = await mesh.experiences()
    samples = list(group.samples())
    assert [len(sample.mask) for sample in samples] == [LENGTH] * RUNS
    twice = beat.tokens_generated + last.tokens_generated - RUNS * LENGTH
    records = [received.record for received in written if isinstance(received.record, PartialResponses)]
    drawn = [one for record in records for answer in record.answers for one in answer.responses or ()]
    tokens = sum(len(one.token_ids) for one in drawn) // 4
    size = sum(len(received.raw) for received in written)
    print(
        f"{beat.tokens_generated} tokens drawn when it was killed, {twice} drawn twice; for 1,000 tokens on the log "
        f"{1000 * len(records) / tokens:.1f} records with {1000 * size / tokens:.0f} bytes"
    )
    assert 0 <= twice <= RUNS * TURN_TOKENS < 0.04 * RUNS * LENGTH
    assert len({bytes(sample.tokens) for sample in samples}) == RUNS, "each run has a response of its own"
    for sample in samples:
        prompt, response = sample.tokens[: sample.prompt_length].tolist(), sample.tokens[sample.prompt_length :]
        assert float(mismatch(model, prompt, response.tolist(), sample.logprobs.tolist()).max()) < TOLERANCE
