"""A version whose bytes are right and whose names, dtypes or shapes are not: whoever announced it meant another model.

The liar is whoever stands between: it knows the true version and its checksum, and tells a manifest that lays the very
same bytes out in another way. Real publishers, receivers and sockets; only what the manifest says is forged.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.faults.transfers import announcement, saved, settled
from trinity_bus.config import SynchronizerSettings, TrainerSettings
from trinity_bus.weights.layout import TransferManifest
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import source_of
from workers.trainer.engines import Publisher, make_publisher

type Rows = list[list[Any]]
type Lie = Callable[[Rows], None]


def swap_names(rows: Rows) -> None:
    rows[0][0], rows[1][0] = rows[1][0], rows[0][0]


def rename(rows: Rows) -> None:
    rows[0][0] = "layer.9"


def another_dtype(rows: Rows) -> None:
    rows[2][1] = "float16"


def another_shape(rows: Rows) -> None:
    rows[0][2].reverse()


def one_for_two(rows: Rows) -> None:
    # The first two lie side by side without a gap.
    rows[0:2] = [["layer.0", "float32", [2 * 16 * 32]]]


LIES = [swap_names, rename, another_dtype, another_shape, one_for_two]


def model(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "layer.0": torch.randn(16, 32, generator=generator),
        "layer.1": torch.randn(16, 32, generator=generator),
        "half": torch.randn(1024, generator=torch.Generator().manual_seed(0)).bfloat16(),
    }


class Trainer:
    """Publishes by one method, and can be made to lie about the layout."""

    def __init__(self, method: str, folder: Path) -> None:
        self._folder = folder
        sync = SynchronizerSettings(sync_method=method, sync_timeout_s=5)
        self.publisher: Publisher = make_publisher(TrainerSettings(bucket_mib=1), sync, folder, "cpu")

    def offer(self, receiver: WeightReceiver, version: int, weights: dict[str, torch.Tensor]) -> TransferProgress:
        folder = saved(self._folder, version, weights)
        checksum = self.publisher.stage(version, weights.items())
        announced = announcement(self.publisher, version, checksum, "a", folder=folder)
        receiver.start(source_of(announced, "a", 5))
        return settled(receiver)

    def close(self) -> None:
        self.publisher.close()


@pytest.fixture
def receiver() -> Iterator[WeightReceiver]:
    made = WeightReceiver()
    yield made
    made.close()


def lie(monkeypatch: pytest.MonkeyPatch, how: Lie) -> None:
    honest = TransferManifest.to_json

    def forged(self: TransferManifest) -> bytes:
        fields = json.loads(honest(self))
        how(fields["tensors"])
        return json.dumps(fields).encode()

    monkeypatch.setattr(TransferManifest, "to_json", forged)


@pytest.mark.parametrize("how", LIES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("method", ["nccl", "memory", "checkpoint"])
def test_a_forged_layout_is_refused_before_memory_is_taken(
    method: str, how: Lie, tmp_path: Path, receiver: WeightReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(method, tmp_path)
    try:
        lie(monkeypatch, how)
        progress = trainer.offer(receiver, 0, model(0))
        assert progress.state == "failed"
        assert progress.error.startswith("ManifestError: what is offered is version 0 with checksum")
        assert not receiver.resources.buffers
        monkeypatch.undo()
        receiver.cancel()
        assert trainer.offer(receiver, 1, model(1)).state == "ready"
    finally:
        trainer.close()
