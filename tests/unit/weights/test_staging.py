"""Staged versions: copies, their buffers, and those that are served from files which their tensors are in anyway."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.support.narrowing import some
from trinity_bus.weights.errors import TensorFileError, WeightTransferError
from trinity_bus.weights.staging import ModelFiles, Staged, Staging
from trinity_bus.weights.tensor_file import write_tensors

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)


def tensors_of(shapes: list[tuple[int, list[int]]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return {
        f"t{number}": torch.randint(0, 200, shape, generator=generator).to(DTYPES[kind])
        for number, (kind, shape) in enumerate(shapes)
    }


SHAPES = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 40), max_size=2)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_what_is_written_is_what_the_library_reads(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, list[int]]]
) -> None:
    path, tensors = tmp_path_factory.mktemp("files") / "a.safetensors", tensors_of(shapes)
    size = write_tensors(path, tensors.items, {"format": "pt"})
    found = load_file(path)
    assert size == sum(tensor.nbytes for tensor in tensors.values())
    assert found.keys() == tensors.keys()
    assert all(found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in tensors.items())


def test_two_tensors_of_a_name_and_other_ones_the_second_time_are_refused(tmp_path: Path) -> None:
    one, other = ("a", torch.zeros(2)), ("a", torch.zeros(3))
    for times, complaint in (
        ([[one, one]], "two tensors 'a'"),
        ([[one], []], "'a' did not come a second time"),
        ([[one], [other]], "has become"),
    ):
        with pytest.raises(ValueError, match=complaint):
            write_tensors(tmp_path / "a", partial(next, iter(times)))


def both(folder: Path, tensors: dict[str, torch.Tensor], dtype: str | None = None) -> tuple[Staged, Staged]:
    """The same version in memory, and in files."""
    found = []
    for where in (None, folder):
        staging = Staging(bucket_bytes=640, retain=1, dtype=dtype, chunks=True)
        checksum = staging.stage(1, tensors.items(), where).checksum
        with staging.lease(1, checksum) as staged:
            found.append(staged)
    return found[0], found[1]


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
def test_every_part_of_every_bucket_is_what_a_copy_would_have(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str | None,
    shapes: list[tuple[int, list[int]]],
    data: st.DataObject,
) -> None:
    folder, tensors = tmp_path_factory.mktemp("files"), tensors_of(shapes)
    write_tensors(folder / "model.safetensors", tensors.items)
    memory, files = both(folder, tensors, dtype)
    assert files.manifest == memory.manifest
    assert files.chunk_hashes == memory.chunk_hashes
    assert not files.memory
    for buffer, bucket in zip(memory.buffers, files.buffers, strict=True):
        assert torch.equal(bucket[:], buffer[:])
        # Whole elements, as chunks are.
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(buffer) // 16)] * 2)))
        assert torch.equal(bucket[start * 16 : end * 16], buffer[start * 16 : end * 16])


def test_what_is_open_can_be_had_when_its_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    folder.mkdir()
    tensors = {"a": torch.arange(300.0), "b": torch.ones(7)}
    # As a large model is: in several files, which an index names.
    save_file({"a": tensors["a"]}, folder / "one.safetensors")
    save_file({"b": tensors["b"]}, folder / "two.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    memory, files = both(folder, tensors)
    some(files.files).open()
    shutil.rmtree(folder)
    assert all(torch.equal(b[:], m) for b, m in zip(files.buffers, memory.buffers, strict=True))


def test_files_that_are_not_there_or_of_another_model_are_refused(tmp_path: Path) -> None:
    _, files = both(tmp_path, {"a": torch.ones(4)})
    with pytest.raises(FileNotFoundError):
        files.buffers[0][:]
    save_file({"a": torch.ones(5)}, tmp_path / "model.safetensors")
    with pytest.raises(TensorFileError, match="has no tensor 'a' of shape"):
        files.buffers[0][:]


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 1}', '{"weight_map": {"a": 2}}', "\xff", "[" * 100_000])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, "latin-1")
    with pytest.raises(TensorFileError, match="names no files"):
        ModelFiles(tmp_path).open()


def test_packing_for_hashes_alone_takes_a_few_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = torch.empty

    def empty(*size: Any, **options: Any) -> torch.Tensor:
        made.append(size)
        return original(*size, **options)

    monkeypatch.setattr(torch, "empty", empty)
    staging = Staging(bucket_bytes=4096, retain=2, chunks=True)
    staging.stage(1, ((f"t{n}", torch.full((1024,), float(n))) for n in range(50)), tmp_path)
    assert len(made) <= 5


def test_tries_to_open_files_of_which_one_is_gone_leave_none_open(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(4), "b": torch.zeros(4)}
    for name, tensor in tensors.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "b.safetensors").rename(tmp_path / "gone")
    files = ModelFiles(tmp_path)
    for _ in range(8):
        with pytest.raises(FileNotFoundError):
            files.open()
    kept = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and str(tmp_path) in str(fd.readlink())]
    assert not kept
    (tmp_path / "gone").rename(tmp_path / "b.safetensors")
    assert files.open().keys() == tensors.keys()


def placed(staging: Staging, version: int, values: float) -> tuple[str, set[int]]:
    """Stage a version; its checksum, and where its buffers lie."""
    checksum = staging.stage(version, [("a", torch.full((300,), values)), ("b", torch.ones(7))]).checksum
    with staging.lease(version, checksum) as staged:
        return checksum, {buffer.data_ptr() for buffer in staged.memory}


def test_staging_copies_and_the_checksum_is_of_the_content() -> None:
    staging, tensor = Staging(bucket_bytes=640, retain=2), torch.zeros(300)
    first = staging.stage(0, [("a", tensor)]).checksum
    tensor += 1
    assert staging.stage(1, [("a", tensor)]).checksum != first
    assert staging.stage(2, [("a", torch.zeros(300))]).checksum == first
    assert list(staging._staged) == [1, 2]
    with pytest.raises(WeightTransferError, match="no tensors"):
        staging.stage(3, [])


def test_the_version_that_is_to_be_kept_stays_beside_the_newest() -> None:
    staging = Staging(bucket_bytes=640, retain=2)
    for version in range(6):
        placed(staging, version, 1.0)
        if version == 2:
            staging.keep(1)
    assert list(staging._staged) == [1, 4, 5]
    staging.keep(5)
    assert list(staging._staged) == [4, 5]


def test_buffers_are_used_again_only_when_nothing_reads_them() -> None:
    staging = Staging(bucket_bytes=640, retain=2)
    checksum, used = placed(staging, 0, 0.0)
    with staging.lease(0, checksum):
        for version in (1, 2, 3):
            assert not used & placed(staging, version, float(version))[1]
    assert placed(staging, 4, 4.0)[1] == used
