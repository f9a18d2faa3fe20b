from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas import BatchRecord, ExperienceGroup, Record, Rollout, RolloutFinished, Sample, SampledWith, Task
from schemas.codec import RECORDS, EncodeError, decode, encode
from schemas.fields.free_form import MAX_DEPTH
from schemas.groups.column import COLUMNS, OPTIONAL_COLUMNS, Column
from tests.support.fakes.mesh_records import rollout_finished
from tests.unit.schemas.record_strategies import full_group, groups, records, small_group


@given(records)
def test_a_plain_record_comes_back_equal_also_from_among_all_types(record: Record) -> None:
    assert decode(encode(record), type(record)) == record
    assert decode(encode(record), *RECORDS) == record


@given(groups())
def test_a_group_comes_back_equal(pair: tuple[list[Rollout], ExperienceGroup]) -> None:
    _, group = pair
    back = decode(encode(group), ExperienceGroup)
    for column in (*COLUMNS, *OPTIONAL_COLUMNS):
        found, written = getattr(back, column.name), getattr(group, column.name)
        if column in OPTIONAL_COLUMNS and written is None:
            assert found is None
        else:
            np.testing.assert_array_equal(found, written, strict=True)
    columns = {column.name for column in (*COLUMNS, *OPTIONAL_COLUMNS)}
    for name in set(ExperienceGroup.__struct_fields__) - columns:
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
        check_optional(given_sample, sample)


def check_optional(given_sample: Rollout, sample: Sample) -> None:
    for name, dtype in (("turn_starts", np.int32), ("turn_rewards", np.float32), ("teacher_logprobs", np.float32)):
        if (values := getattr(given_sample, name)) is not None:
            np.testing.assert_array_equal(getattr(sample, name), np.array(values, dtype))
        elif (found := getattr(sample, name)) is not None:
            assert np.isnan(found).all() if dtype is np.float32 else len(found) == 0
    if given_sample.routes is not None:
        np.testing.assert_array_equal(sample.routes, given_sample.routes)
    assert (b"" if sample.kept is None else bytes(sample.kept)) == (given_sample.kept or b"")
    how = given_sample.sampling
    if how is None or (how.temperature is None and not how.altered_by):
        assert sample.sampling is None
    else:
        limits = (1.0 if how.top_p is None else how.top_p, max(how.top_k or 0, 0), how.min_p or 0.0)
        temperature = 1.0 if how.temperature is None else how.temperature
        told = (np.nan,) * 3 if how.altered_by else limits
        np.testing.assert_equal(sample.sampling, SampledWith(*np.array([temperature, *told], np.float32).tolist()))


@pytest.mark.parametrize(
    ("given_group", "columns"), [(small_group(3, response=7), COLUMNS), (full_group(), (*COLUMNS, *OPTIONAL_COLUMNS))]
)
def test_decoding_copies_nothing(given_group: ExperienceGroup, columns: tuple[Column, ...]) -> None:
    value = encode(given_group)
    message = np.frombuffer(value, np.uint8)
    group = decode(value, ExperienceGroup)
    for column in columns:
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


def test_nan_survives_and_whole_numbers_are_welcome_where_fractions_may_stand() -> None:
    record = rollout_finished("t", metrics=[{"reward": float("nan")}])
    assert np.isnan(decode(encode(record), RolloutFinished).metrics[0]["reward"])
    task = {"schema": "task", "schema_version": 1, "task_id": "t", "workflow": "math", "prompt": "1+1"}
    assert decode(msgpack.packb({**task, "timeout_s": 5}), Task).timeout_s == 5


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


def test_a_record_over_its_limit_or_not_of_unicode_is_not_written() -> None:
    with pytest.raises(EncodeError, match=r"task: \d+ bytes, the limit is 4194304"):
        encode(Task(task_id="t", workflow="w", data={str(i): "x" * (1 << 20) for i in range(5)}))
    unchecked: Any = BatchRecord.model_construct
    broken = unchecked(batch_id="\ud800")
    with pytest.raises(EncodeError, match="batch"):
        encode(broken)


NAMES = [column.name for column in (*COLUMNS, *OPTIONAL_COLUMNS)]


@given(st.sampled_from(NAMES), st.sampled_from([np.int64, np.float64, np.uint16]))
def test_a_column_of_another_dtype_is_not_written(name: str, dtype: type) -> None:
    group = full_group()
    wrong = replace(group, **{name: np.zeros(getattr(group, name).shape, dtype)})
    with pytest.raises(EncodeError, match=f"{name} is {np.dtype(dtype)}"):
        encode(wrong)
