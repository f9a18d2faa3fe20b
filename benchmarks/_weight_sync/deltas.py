"""Versions sent whole and as what has changed, to a receiver without a mesh."""

import statistics
import threading
import time
from collections.abc import Iterator, Mapping

import torch

from benchmarks._records import announce, source
from benchmarks._report import Row, less
from benchmarks._weight_sync.explorer import LIMIT_S
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver

CHANGED = 50


def delta_rows(name: str, tensors: Mapping[str, torch.Tensor], rounds: int) -> Iterator[Row]:
    weights = {key: tensor.bfloat16() for key, tensor in tensors.items()}
    ways = {way: (WeightServer(deltas=way == "changes"), WeightReceiver()) for way in ("whole", "changes")}
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for version in range(rounds + 1):
        for tensor in weights.values():
            tensor.view(torch.int16).view(-1)[version::CHANGED] += 1
        for way, (server, receiver) in ways.items():
            checksum = server.stage(version, weights.items())
            ended = threading.Event()
            began = time.perf_counter()
            announced = announce(version, checksum, server.address, "memory", "receiver")
            server.admit(announced)
            receiver.start(source(announced, "receiver"), lambda _, ended=ended: ended.set())  # type: ignore[misc]
            assert ended.wait(LIMIT_S), f"version {version} has not come within {LIMIT_S:g} s"
            progress = receiver.progress
            assert progress.state == "ready", progress.error
            receiver.take()
            # The first version makes memory, and has no base.
            if version:
                taken[way].append((time.perf_counter() - began, progress.received_nbytes / progress.nbytes))
    for way, (server, receiver) in ways.items():
        receiver.close()
        server.close()
        seconds, share = (statistics.median(column) for column in zip(*taken[way], strict=True))
        yield less(f"{name}, {way} sent to a receiver: all of it", seconds, "s")
        yield less(f"{name}, {way} sent to a receiver: share of the bytes", share, "")
