"""Every record comes back from its bytes as it was."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import BatchRecord, ExperienceGroup, Record, Rollout, RolloutFinished, Task
from schemas.codec import RECORDS, EncodeError, decode, encode
from schemas.experience import COLUMNS
from schemas.free_form import MAX_DEPTH
from tests.unit.schemas.record_strategies import groups, records, small_group


@given(records)
def test_a_plain_record_comes_back_equal(record: Record) -> None:
    assert decode(encode(record), type(record)) == record


@given(records)
def test_a_plain_record_is_found_among_all_types(record: Record) -> None:
    assert type(decode(encode(record), *RECORDS)) is type(record)


@given(groups())
def test_a_group_comes_back_equal(pair: tuple[list[Rollout], ExperienceGroup]) -> None:
    _, group = pair
    back = decode(encode(group), ExperienceGroup)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(back, column.name), getattr(group, column.name), strict=True)
    for name in set(ExperienceGroup.__struct_fields__) - {column.name for column in COLUMNS}:
        assert getattr(back, name) == getattr(group, name)
    assert encode(back) == encode(group)


@given(groups())
def test_a_group_s_samples_are_what_it_was_built_of(pair: tuple[list[Rollout], ExperienceGroup]) -> None:
    inputs, group = pair
    samples = list(decode(encode(group), ExperienceGroup).samples())
    assert len(samples) == len(inputs) == len(group)
    for number, (given_sample, sample) in enumerate(zip(inputs, samples, strict=True)):
        prompt, response = list(given_sample.prompt_token_ids), list(given_sample.response_token_ids)
        assert sample.tokens.tolist() == prompt + response
        assert sample.prompt_length == len(prompt)
        np.testing.assert_array_equal(sample.logprobs, np.array(given_sample.logprobs, np.float32))
        mask = [True] * len(response) if given_sample.mask is None else list(given_sample.mask)
        assert sample.mask.tolist() == mask
        np.testing.assert_equal(sample.reward, given_sample.reward)
        assert sample.run_id == number
        versions = [version for _, version in given_sample.versions]
        assert (sample.version_min, sample.version_max) == (min(versions, default=-1), max(versions, default=-1))


def test_decoding_copies_nothing() -> None:
    value = encode(small_group(3, response=7))
    message = np.frombuffer(value, np.uint8)
    group = decode(value, ExperienceGroup)
    for column in COLUMNS:
        view = getattr(group, column.name)
        assert np.shares_memory(view, message), column.name
        assert not view.flags.writeable, column.name
        assert view.flags.aligned, column.name


@pytest.mark.parametrize("samples", [1, 300, 2000])
def test_groups_of_many_samples(samples: int) -> None:
    group = small_group(samples)
    back = decode(encode(group), ExperienceGroup)
    assert len(back) == samples
    assert back.metrics == group.metrics


def test_nan_metrics_and_rewards_survive() -> None:
    record = RolloutFinished(
        explorer="e",
        incarnation="i",
        task_id="t",
        attempt=1,
        batch_id="b",
        batch_type="train",
        status="completed",
        completed_runs=1,
        total_runs=1,
        metrics=[{"reward": float("nan")}],
    )
    assert np.isnan(decode(encode(record), RolloutFinished).metrics[0]["reward"])


def test_whole_numbers_are_welcome_where_fractions_may_stand() -> None:
    record = decode(msgpack.packb({"schema": "task", "schema_version": 1, **MINIMAL, "timeout_s": 5}), Task)
    assert record.timeout_s == 5


MINIMAL = {"task_id": "t", "workflow": "math", "prompt": "1+1"}


@pytest.mark.parametrize(
    "data",
    [{"a": object()}, {"a": b"raw"}, {"a": 2**64}, {1: "a"}, {"a": {2: 3}}, {"a": (1, 2)}],
    ids=["object", "bytes", "huge", "key", "nested key", "tuple"],
)
def test_data_takes_plain_values_only(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="data"):
        Task(task_id="t", workflow="w", data=data)


def test_data_has_a_depth_limit() -> None:
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH - 1):
        deep = {"a": deep}
    assert decode(encode(Task(task_id="t", workflow="w", data=deep)), Task).data == deep
    with pytest.raises(ValueError, match="nested deeper than 32"):
        Task(task_id="t", workflow="w", data={"a": deep})


def test_a_record_over_its_limit_is_not_written() -> None:
    with pytest.raises(EncodeError, match=r"task: \d+ bytes, the limit is 4194304"):
        encode(Task(task_id="t", workflow="w", data={str(i): "x" * (1 << 20) for i in range(5)}))


def test_text_that_is_not_unicode_is_not_written() -> None:
    unchecked: Any = BatchRecord.model_construct
    broken = unchecked(batch_id="\ud800")
    with pytest.raises(EncodeError, match="batch"):
        encode(broken)


@given(st.sampled_from([column.name for column in COLUMNS]), st.sampled_from([np.int64, np.float64, np.uint16]))
def test_a_column_of_another_dtype_is_not_written(name: str, dtype: type) -> None:
    from msgspec.structs import replace

    group = small_group()
    wrong = replace(group, **{name: getattr(group, name).astype(dtype)})
    with pytest.raises(EncodeError, match=f"{name} is {np.dtype(dtype)}"):
        encode(wrong)
