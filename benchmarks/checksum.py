"""The checksum of a version: one SHA-256 over all bytes, against that of pieces that cores share, with the layout.

``one stream`` is how versions were hashed before layouts were part of the checksum: a single SHA-256, which keeps one
core busy. ``pieces`` is ``trinity_bus.weights.layout`` with one thread, and with as many as it takes by itself;
``whole`` adds what the manifest costs: the layout of a model of 400 tensors. They take turns, because machines are
noisy, and medians are compared. The goal is to be no slower than before.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks._options import parser
from benchmarks._report import Row, report
from trinity_bus.weights.layout import ContentHash, TensorMeta, TransferManifest

BUCKETS, BUCKET = 16, 16 << 20
ROUNDS = 15
TENSORS = tuple(TensorMeta(f"model.layers.{i}.weight", "bfloat16", (1024, 327)) for i in range(400))


def one_stream(buckets: list[torch.Tensor]) -> None:
    digest = hashlib.sha256()
    for bucket in buckets:
        digest.update(bucket.numpy())


def pieces(buckets: list[torch.Tensor], threads: int | None) -> str:
    with ContentHash(threads) as digest:
        for bucket in buckets:
            digest.put(bucket)
    return digest.hexdigest()


def main() -> None:
    options = parser(__doc__).parse_args()
    count, rounds = (2, 1) if options.short else (BUCKETS, ROUNDS)
    buckets = [torch.randint(256, (BUCKET,), dtype=torch.uint8) for _ in range(count)]
    ways: dict[str, Callable[[], object]] = {
        "one stream, as before": lambda: one_stream(buckets),
        "pieces, one thread": lambda: pieces(buckets, 1),
        "pieces, threads by itself": lambda: pieces(buckets, None),
        "whole, with the layout": lambda: TransferManifest(1, pieces(buckets, None), BUCKET, TENSORS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    size = count * BUCKET
    rows = [Row(f"{name}", size / statistics.median(took) / 1e9, "GB/s") for name, took in seconds.items()]
    before, after = (statistics.median(seconds[name]) for name in ("one stream, as before", "whole, with the layout"))
    rows.append(Row("whole against before", before / after, "x", goal=1.0))
    report("checksum", f"Checksum of {size >> 20} MiB on {len(os.sched_getaffinity(0))} cores", rows, options)


if __name__ == "__main__":
    main()
