"""Two ranks under gloo, splitting the layers, the data, or the model between them, train what one rank trains."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from schemas.codec import encode
from tests.integration.training.one_rank import LAYOUTS
from tests.support.fakes.experiences import make_group
from tests.support.fakes.tiny_trainer import write_model
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import wait_until
from trinity_bus.config import TrainerSettings
from trinity_bus.training import parallel
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.parallel import Layout
from trinity_bus.weights.staging import Staging

LIMIT_S = 600.0
"""Two processes import Megatron: a quarter of a minute alone, minutes on a machine at its limit."""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(LIMIT_S + 100)]


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    with parallel.initialized() as made:
        yield made


def test_two_ranks_train_what_one_trains(layout: Layout, tmp_path: Path) -> None:
    folders = [
        write_model(tmp_path / "model", vocabulary=31, tied=False),
        write_model(tmp_path / "tied", vocabulary=31, tied=True),
        write_model(tmp_path / "qwen2", vocabulary=31, tied=False, family="qwen2"),
        write_model(tmp_path / "llama", vocabulary=31, tied=False, family="llama"),
    ]
    batches = [[make_group(seed=10 * step + i, vocabulary=31, version=step) for i in range(3)] for step in range(2)]
    for step, groups in enumerate(batches):
        for i, member in enumerate(groups):
            (tmp_path / f"batch-{step}-{i}").write_bytes(encode(member))
    ports = list(map(str, quiet_ports(len(LAYOUTS))))  # both ranks get all
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("one_rank.py")),
                str(tmp_path),
                str(tmp_path / f"rank{rank}"),
                *ports,
            ],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    try:
        # One that fails leaves the other waiting for it.
        wait_until(lambda: any(rank.poll() for rank in ranks) or all(r.poll() == 0 for r in ranks), "ends", LIMIT_S)
        assert [rank.poll() for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()

    alone = {}
    for path in folders:
        single = TrainingEngine(
            TrainerSettings(
                model_path=str(path),
                learning_rate=1e-2,
                mini_batches=2,
                micro_batch_tokens=40,
                old_logprobs="recompute",
            ),
            layout,
        )
        alone[path.name] = [single.train_step(groups) for groups in batches], dict(single.hf_tensors())
    for name in ("rank0", "rank1"):
        for kind, seen in zip(LAYOUTS, json.loads((tmp_path / name).read_text()), strict=True):
            expected, weights = alone[LAYOUTS[kind]]
            for ours, theirs in zip(seen, expected, strict=True):
                for metric in ("loss", "grad_norm", "entropy", "rollout_k3", "importance_weight_mean"):
                    assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-5), metric
            exported = load_file(tmp_path / kind / "hf" / "model.safetensors")
            assert exported.keys() == weights.keys()
            # What explorers would get is what was exported, in the order of one rank, whatever the layout.
            whole = Staging(bucket_bytes=1 << 12, retain=1, dtype="bfloat16")
            manifest = whole.stage(2, [(weight, exported[weight]) for weight in weights])
            assert (tmp_path / kind / "checksum").read_text() == manifest.checksum
            for weight, tensor in exported.items():
                # Four updates of 1e-2 each; rounding shows where AdamW divides a small gradient by itself.
                difference = (tensor - weights[weight]).abs()
                assert difference.mean() < 1e-5, weight
                assert difference.max() < 5e-3, weight


def test_a_world_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParallelError, match="WORLD_SIZE=1 with tensor_parallel=2"):
        parallel.initialize(2)
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(ParallelError, match="WORLD_SIZE='four'"):
        parallel.initialize()


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
