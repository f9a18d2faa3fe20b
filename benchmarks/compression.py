"""What packing saves and costs, for each codec that ``kafka.compression`` knows: bytes on the wire and processor time.

No broker: a batch is packed as the producer packs it and unpacked as readers do. Two kinds of records, because they
differ most: experiences, whose log-probabilities are noise and whose token ids follow Zipf's law, one group a batch;
and tasks, short texts in msgpack, 768 KiB a batch.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks._options import parser
from benchmarks._records import equal_samples
from benchmarks._report import less, report
from schemas import Task
from schemas.codec import encode
from trinity_bus.bus.read.codecs import GZIP, LZ4, SNAPPY, ZSTD, unpack
from trinity_bus.bus.write.producer_client import MAX_BATCH_BYTES

SAMPLES, PROMPT, RESPONSE = 8, 200, 2000
ROUNDS = 7
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, gzip_encode),
    "snappy": (SNAPPY, snappy_encode),
    "lz4": (LZ4, lz4_encode),
    "zstd": (ZSTD, zstd_encode),
}
TEXT = (
    "a the of in to and is how many what number sum total each has have if then per day cost apple train left "
    "minutes hours speed twice half remaining equal more less than after before buys sells gives boxes students"
)
WORDS = TEXT.split()


def experiences() -> list[bytes]:
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.zipf(1.2, SAMPLES * (PROMPT + RESPONSE)), 150_000)
    logprobs = -rng.exponential(0.5, SAMPLES * RESPONSE)
    return [encode(equal_samples("task-0", PROMPT, tokens, logprobs, rng.random(SAMPLES, dtype=np.float32)))]


def tasks() -> list[bytes]:
    records: list[Any] = []
    rng, size = random.Random(0), 0  # noqa: S311 - makes up texts
    while size < MAX_BATCH_BYTES - 1024:
        prompt = " ".join(f"{rng.choice(WORDS)} {rng.randrange(1000)}" for _ in range(rng.randrange(10, 60)))
        records.append(encode(Task(task_id=f"task-{len(records)}", workflow="math", prompt=prompt, answer="42")))
        size += len(records[-1]) + 30
    return records


def body(records: Sequence[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 1 << 30)
    for number, record in enumerate(records):
        builder.append(number, 1_700_000_000_000, b"task-0", record, [("content-type", b"application/vnd.msgpack")])
    return bytes(builder.build())[61:]


def ms(work: Callable[[], object], rounds: int) -> float:
    """Processor time, milliseconds: the median of some rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def main() -> None:
    options = parser(__doc__).parse_args()
    rounds = 1 if options.short else ROUNDS
    rows = []
    for name, plain in (("experiences", body(experiences())), ("tasks", body(tasks()))):
        mib = len(plain) / (1 << 20)
        for codec, (number, pack) in CODECS.items():
            packed = pack(plain)
            view = memoryview(packed)
            rows += [
                less(f"{name}, {codec}: of its size", 100 * len(packed) / len(plain), "%"),
                less(f"{name}, {codec}: packing", ms(partial(pack, plain), rounds) / mib, "ms/MiB"),
                less(f"{name}, {codec}: unpacking", ms(partial(unpack, number, view, 1 << 26), rounds) / mib, "ms/MiB"),
            ]
    report("compression", "Packing records, by kind and codec", rows, options)


if __name__ == "__main__":
    main()
