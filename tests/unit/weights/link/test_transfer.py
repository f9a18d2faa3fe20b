"""Real gloo links between threads and between processes."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.support.faults.transfers import announcement, assert_takes, line_of, peer, pull, settled
from tests.support.mesh.waiting import wait_until
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import source_of

BUCKET = 1 << 12


def model(seed: int, *, sizes: tuple[int, ...] = (1000, 10, 3000)) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layer.{i}": torch.randn(size, generator=generator) for i, size in enumerate(sizes)}
    return tensors | {"half": torch.randn(7, 3, generator=generator).bfloat16(), "scalar": torch.tensor(float(seed))}


@pytest.fixture
def publisher() -> Iterator[WeightServer]:
    made = WeightServer(bucket_bytes=BUCKET, timeout_s=15, method="gloo")
    yield made
    made.close()


@pytest.fixture(params=[True, False], ids=["hash beside", "hash after"])
def receiver(request: pytest.FixtureRequest) -> Iterator[WeightReceiver]:
    made = WeightReceiver(overlap=request.param)
    yield made
    made.close()


def places(publisher: WeightServer, version: int) -> set[int]:
    """Where the buffers of a version lie."""
    return {
        buffer.data_ptr() for buffer in publisher.staging._staged[version].buffers if isinstance(buffer, torch.Tensor)
    }


def take(
    publisher: WeightServer,
    receiver: WeightReceiver,
    version: int,
    weights: dict[str, torch.Tensor],
    *,
    epoch: int = 1,
) -> None:
    checksum = publisher.stage(version, weights.items())
    assert pull(publisher, receiver, version, checksum, 15, epoch=epoch).checksum == checksum
    assert_takes(receiver, weights)


def test_versions_arrive_whole_over_one_link_and_another(publisher: WeightServer, receiver: WeightReceiver) -> None:
    for version, epoch in ((0, 1), (1, 1), (2, 2)):
        take(publisher, receiver, version, model(version), epoch=epoch)


def test_floats_are_converted_on_the_way_and_nothing_else_is(receiver: WeightReceiver) -> None:
    weights = {"w": torch.randn(50), "ids": torch.arange(5)}
    publisher = WeightServer(bucket_bytes=BUCKET, timeout_s=5, dtype="bfloat16", method="gloo")
    pull(publisher, receiver, 0, publisher.stage(0, weights.items()))
    assert_takes(receiver, {"w": weights["w"].bfloat16(), "ids": weights["ids"]})
    publisher.close()


def test_staging_copies_and_the_checksum_is_of_the_content(publisher: WeightServer) -> None:
    weights = model(0)
    first = publisher.stage(0, weights.items())
    weights["layer.0"] += 1
    second = publisher.stage(1, weights.items())
    weights["layer.0"].copy_(model(0)["layer.0"])
    assert first != second
    assert publisher.stage(2, weights.items()) == first
    assert publisher.staging.versions == [1, 2]
    with pytest.raises(WeightTransferError, match="no tensors"):
        publisher.stage(3, [])


def test_the_version_that_is_to_be_kept_stays_beside_the_newest(publisher: WeightServer) -> None:
    for version in range(3):
        publisher.stage(version, model(version).items())
    publisher.keep(1)
    for version in range(3, 6):
        publisher.stage(version, model(version).items())
    assert publisher.staging.versions == [1, 4, 5]
    publisher.keep(5)
    assert publisher.staging.versions == [4, 5]


def test_a_member_killed_amid_a_transfer_costs_the_others_nothing(receiver: WeightReceiver) -> None:
    # Larger than what the kernel buffers, so that the dead member is really waited for.
    publisher = WeightServer(bucket_bytes=8 << 20, timeout_s=5, method="gloo")
    weights = model(1, sizes=(2 << 20,) * 4)
    first = publisher.stage(0, model(0).items())
    second = publisher.stage(1, weights.items())
    started = announcement(publisher, 0, first, "victim")
    with peer(*publisher.address, "trainer-life/1/victim", first, second, module="transfers") as victim:
        assert line_of(victim) == b"here\n"
        publisher.admit(started)
        assert line_of(victim) == b"taken\n"
        announced = announcement(publisher, 1, second, "victim", "a")
        assert line_of(victim) == b"first\n"
        victim.kill()
        receiver.start(source_of(announced, "a", 15))
        settled(receiver)
        assert_takes(receiver, weights)
    wait_until(lambda: publisher.staging._staged[1].leases == 0)
    # The next version goes to whoever is left, at once.
    began = time.monotonic()
    take(publisher, receiver, 2, weights, epoch=2)
    assert time.monotonic() - began < 5
    publisher.close()


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_member_without_a_gpu_says_at_once_that_nccl_brings_it_nothing(
    publisher: WeightServer, device: torch.device | None
) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, model(0).items()), "a")
    receiver = WeightReceiver(device=device)
    receiver.start(replace(source_of(announced, "a", 30), method="nccl"))
    assert settled(receiver).error.endswith("set synchronizer.sync_method to memory")
    receiver.close()


def test_bytes_that_differ_from_their_checksum_are_not_ready(publisher: WeightServer, receiver: WeightReceiver) -> None:
    announced = announcement(publisher, 0, publisher.stage(0, model(0).items()), "a")
    buffer = publisher.staging._staged[0].buffers[0]
    assert isinstance(buffer, torch.Tensor)
    buffer[17] += 1
    receiver.start(source_of(announced, "a", 5))
    progress = settled(receiver)
    assert progress.state == "failed"
    assert "have digest" in progress.error
    with pytest.raises(WeightTransferError, match="no version is ready: failed"):
        receiver.take()
    with pytest.raises(WeightTransferError, match="cancel it first"):
        receiver.start(source_of(announced, "a", 0.3))


def test_after_a_cancelled_transfer_comes_the_next(publisher: WeightServer, receiver: WeightReceiver) -> None:
    publisher.stage(0, model(0).items())
    receiver.start(source_of(announcement(publisher, 0, "0" * 64, "a"), "a", 5))
    receiver.cancel()
    assert receiver.progress.state == "idle"
    take(publisher, receiver, 1, model(1))


def test_buffers_are_used_again_only_when_nothing_reads_them(publisher: WeightServer) -> None:
    checksum = publisher.stage(0, model(0).items())
    used = places(publisher, 0)
    with publisher.staging.lease(0, checksum):
        for version in (1, 2, 3):
            publisher.stage(version, model(version).items())
            assert not used & places(publisher, version)
    publisher.stage(4, model(4).items())
    assert places(publisher, 4) == used
