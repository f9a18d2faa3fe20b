"""Two ranks under gloo, splitting the layers, the data, or the model between them, do what one rank does."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.training.one_rank import CHAINED_WITH, CHAINS, LAYOUTS, SOME, chain_of, chained, go_on
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.forks import forked
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.waiting import wait_until
from tests.support.sampled import at_night
from tests.support.training.conformance import LORA, VOCABULARY, Subject, batch, weights
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import FAMILIES
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import parallel

LIMIT_S = 1500.0
"""Two processes import Megatron: a quarter of a minute alone, minutes on a machine at its limit."""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(LIMIT_S + 100)]


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    yield parallel.initialize(TrainerSettings())
    parallel.shut_down()


@pytest.mark.parametrize("layouts", [SOME, at_night(tuple(LAYOUTS))], ids=["some", "all"])
def test_two_ranks_do_what_one_does_and_go_on_from_each_others_checkpoints(
    tmp_path: Path, layout: Layout, layouts: tuple[str, ...]
) -> None:
    subjects = {}
    for family in FAMILIES:
        # Where a pipeline's ends share the embedding it is added up over both.
        write_model(tmp_path / family, family=family, vocabulary=VOCABULARY, tied=family == "qwen3", layers=4)
        subjects[family] = Subject(MegatronEngine, tmp_path / family, tmp_path, {})
    for family in CHAINS:
        engine = subjects[family].make(**CHAINED_WITH.get(family, {}))
        engine.train_step(batch(0))
        engine.save_checkpoint(chained(tmp_path, family, 0), engine.progress).result()
    ports = quiet_ports(len(layouts))  # both ranks get all
    places = [f"{name}:{port}" for name, port in zip(layouts, ports, strict=True)]
    command = ("tests.integration.training.one_rank", str(tmp_path), *places)
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            log, own = tmp_path / f"rank-{rank}.log", {**env, "OMP_NUM_THREADS": "1", "RANK": str(rank)}
            process = forked(*command, name=log.stem, env=own, output=log, kind="engines")
            stack.enter_context(process)
            stack.enter_context(log_shown_on_failure(process, log))
            ranks.append(process)
        # One that fails leaves the other waiting for it.
        wait_until(lambda: any(rank.poll() for rank in ranks) or all(r.poll() == 0 for r in ranks), "ends", LIMIT_S)
        assert [rank.poll() for rank in ranks] == [0, 0]
    go_on(subjects["qwen2"].make(**LORA), tmp_path / "scratch" / "tp2" / "qwen2" / "lora" / "checkpoints", tmp_path)
    for family in CHAINS:
        chain = chain_of(family, layouts)
        handed_on, undisturbed = (subjects[family].make(**CHAINED_WITH.get(family, {})) for _ in range(2))
        go_on(handed_on, chained(tmp_path, family, len(chain)), tmp_path / "last" / family)
        for step in range(len(chain) + 2):
            undisturbed.train_step(batch(step))
        theirs = weights(undisturbed)
        for name, tensor in weights(handed_on).items():
            # Rounding shows where AdamW divides a small gradient by itself.
            assert (tensor - theirs[name]).abs().mean() < 1e-5, (family, name)


def test_a_world_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParallelError, match=r"WORLD_SIZE=1 with .*'data_parallel': 3.*the world must have"):
        parallel.initialize(TrainerSettings(tensor_parallel=2, data_parallel=3))
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(ParallelError, match="WORLD_SIZE='four'"):
        parallel.initialize(TrainerSettings())


def test_gloo_listens_on_the_loopback_interface_only(layout: Layout) -> None:
    assert layout.world_size == 1
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd)}  # noqa: PTH115, PTH208 - descriptors, not paths
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                assert fields[1].split(":")[0] == loopback
    assert torch.distributed.is_initialized()


def _exists(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")
