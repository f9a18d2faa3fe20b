"""Data sets that somebody has made: damaged ones, small ones that unpack to more than there is, and what is none.

What lies where one should may be a pipe, a device, or a folder that somebody else has written.
"""

import gzip
import io
import math
import os
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.mesh.processes import children_with
from tests.support.sampled import sampled
from workers.taskset import columns_main
from workers.taskset import rows as reading
from workers.taskset.dataset import PassRates, load
from workers.taskset.description import DatasetError
from workers.taskset.rows import RowError, RowReader

DAMAGED = 400
"""Files of each format."""
MANY = 2_000_000


def table() -> pa.Table:
    count = 40
    return pa.table(
        {
            "question": [f"What is {i} and {i}?" for i in range(count)],
            "answer": pa.array([str(2 * i) for i in range(count)], pa.large_string()),
            "kind": pa.array(["abc"[i % 3] for i in range(count)]).dictionary_encode(),
            "choices": [[str(i), str(i + 1)] for i in range(count)],
            "extra": [{"level": i, "from": "here"} for i in range(count)],
            "score": pa.array([i / 2 for i in range(count)], pa.float32()),
        }
    )


def as_stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=10 if table.num_rows < 100 else None)
    return sink.getvalue()


def as_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    return sink.getvalue()


def as_parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd", row_group_size=10 if table.num_rows < 100 else None)
    return sink.getvalue()


def damaged(content: bytes, seed: int) -> bytes:
    """Change a few bytes."""
    dice, changed = random.Random(seed), bytearray(content)  # noqa: S311 - to be repeated
    for _ in range(dice.randint(1, 6)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize(("name", "write"), [("a.arrow", as_stream), ("b.arrow", as_file), ("c.parquet", as_parquet)])
def test_what_is_damaged_gives_rows_or_says_why_and_shows_no_memory(
    name: str, write: Callable[[pa.Table], bytes]
) -> None:
    content = write(table())
    refused = 0
    with RowReader() as reader:
        for seed in range(DAMAGED):
            file = damaged(content, seed)
            try:
                found = [row for _, row in reader.rows(name, file)]
            except RowError:
                refused += 1
                continue
            # Text of a Parquet file is packed.
            texts = [row.get(key) for row in found for key in ("question", "answer")] if name != "c.parquet" else []
            assert all(text.encode() in file for text in texts if isinstance(text, str)), f"seed {seed} shows memory"
        assert [row for _, row in reader.rows(name, content)] == table().to_pylist()
    assert refused > DAMAGED / 2


def same(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))


BOMBS: dict[str, Callable[[], bytes]] = {
    "numbers.parquet": lambda: as_parquet(pa.table({"q": np.zeros(MANY, np.int64)})),
    "a_text.parquet": lambda: as_parquet(pa.table({"q": same("word " * 200, MANY)})),
    "a_long_text.parquet": lambda: as_parquet(pa.table({"q": same("x" * (1 << 20), 100_000)})),
    "too_long_a_text.parquet": lambda: as_parquet(pa.table({"q": same("x" * (20 << 20), 1000)})),
    "nulls.parquet": lambda: as_parquet(pa.table({"q": pa.nulls(MANY)})),
    "a_list.parquet": lambda: as_parquet(
        pa.table({"q": pa.ListArray.from_arrays([0, MANY], same("words", MANY).cast(pa.string()))})
    ),
    "a_text.arrow": lambda: as_stream(pa.table({"q": same("word " * 2000, MANY)}), "zstd"),
    "packed.arrow": lambda: as_stream(pa.table({"q": ["y" * (1 << 20)] * 200}), "zstd"),
    "nulls.arrow": lambda: as_stream(pa.table({"q": pa.nulls(2_000_000_000)})),
    "lines.jsonl.gz": lambda: gzip.compress(b'{"q": 1}\n' * MANY * 5, 1),
    "a_line.jsonl.gz": lambda: gzip.compress(b'{"q": "' + b"x" * (200 << 20) + b'"}', 1),
    "a_field.csv.gz": lambda: gzip.compress(b'q\n"' + b"x" * (50 << 20) + b'"', 1),
}

PEAK = """
import resource, sys
from pathlib import Path
from workers.taskset.rows import RowError, RowReader
path = Path(sys.argv[1])
with RowReader() as reader:
    try:
        for _ in reader.rows(path.name, path.read_bytes()):
            pass
        sys.exit("nothing was refused")
    except RowError as error:
        print(error)
# Its own ru_maxrss has the peak of the process that forked it, which is a whole test run.
lines = Path("/proc/self/status").read_text().splitlines()
own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
print(own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@pytest.mark.parametrize("name", sampled(list(BOMBS), 4))
def test_a_small_file_takes_a_bounded_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    assert path.stat().st_size < 4 << 20
    command = [sys.executable, "-c", PEAK, str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "bytes" in told[0] or "memory" in told[0] or "limit" in told[0]
    # What the process of pyarrow may have, and what is unpacked of lines.
    assert int(told[1]) < columns_main.MEMORY_BYTES + (1 << 29)


def test_the_death_of_what_reads_is_the_error_of_a_row(tmp_path: Path) -> None:
    content = as_parquet(pa.table({"q": [f"{i} " * 2000 for i in range(20_000)]}))
    with RowReader() as reader:
        found = reader.rows("a.parquet", content)
        next(found)
        (child,) = children_with("columns_main.py")
        child.send_signal(11)
        with pytest.raises(RowError, match=r"^row group 1: the process that reads it has died of SIGSEGV") as raised:
            deque(found, maxlen=0)
        assert raised.value.number is not None
        assert raised.value.number > 1
        assert not child.is_running()
        # The next one has another process.
        assert sum(1 for _ in reader.rows("a.arrow", as_stream(table()))) == 40
    assert not children_with("columns_main.py")


def test_a_bad_batch_is_told_with_its_file_its_row_and_its_group(tmp_path: Path) -> None:
    text = pa.array(["a"] * 10 + ["b"] * 10)
    values = bytearray(text.buffers()[2].to_pybytes())
    values[15] = 0xFF
    broken = pa.StringArray.from_buffers(20, text.buffers()[1], pa.py_buffer(bytes(values)))
    parquet.write_table(pa.table({"q": broken}), tmp_path / "a.parquet", row_group_size=10)
    (tmp_path / "set.toml").write_text('[[train]]\npath = "a.parquet"\nworkflow = "math"\nprompt = "${q}"\n')
    with pytest.raises(DatasetError, match=r"a\.parquet:11: row group 2: it cannot be read: .*UTF8"):
        load(tmp_path / "set.toml")


def test_rows_that_nobody_wants_any_more_leave_no_process() -> None:
    with RowReader() as reader:
        found = reader.rows("a.arrow", as_stream(table()))
        next(found)
        found.close()  # type: ignore[attr-defined]  # it is a generator
        assert sum(1 for _ in reader.rows("a.arrow", as_stream(table()))) == 40


def test_what_both_processes_say_is_the_same() -> None:
    assert reading._OUT_OF_MEMORY == columns_main.OUT_OF_MEMORY
    assert reading.MAX_ROW_BYTES == columns_main.MAX_ROW_BYTES


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_never_ends_is_not_read(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / f"a.{kind}")
    with pytest.raises(DatasetError, match="is no file"):
        load(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("splits", [b"{}", b"[]", b'{"splits": []}', b'{"splits": 1}', b"\xff", b"[" * 100_000])
def test_a_folder_that_nobody_can_read_is_told(tmp_path: Path, splits: bytes) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_dict.json").write_bytes(splits)
    with pytest.raises(DatasetError, match="no folder that the library datasets has saved"):
        load(folder)


def test_a_reward_that_is_no_number_ends_no_order() -> None:
    rates = PassRates(3)
    rates.saw(1, math.nan)
    assert [rates.draw(share) for share in (0.1, 0.5, 0.9)] == [0, 1, 2]
