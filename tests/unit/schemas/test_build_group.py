"""Groups from what engines hand out."""

from typing import Any

import numpy as np
import pytest

from schemas import ExperienceGroup, Rollout, build_group
from schemas.codec import SchemaError, decode, encode
from schemas.experience import join_groups

IDENTIFIERS: dict[str, Any] = {
    "task_id": "t",
    "attempt": 1,
    "batch_id": "b",
    "batch_type": "train",
    "workflow": "math",
    "model": "policy",
    "explorer": "e",
    "incarnation": "i",
}


def sample(**changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "prompt_token_ids": [1, 2],
        "response_token_ids": (3, 4, 5),
        "logprobs": [-1, -2, -3],
        "reward": np.float64(0.5),
        "versions": [(0, 3), (1, 4)],
        "metrics": {"accuracy": np.float32(1)},
    }
    return Rollout(**fields | changes)


def test_lists_tuples_and_arrays_of_other_types_are_taken() -> None:
    group = decode(
        encode(build_group([sample(), sample(logprobs=np.zeros(3, np.float16))], **IDENTIFIERS)), ExperienceGroup
    )
    first, second = group.samples()
    assert first.tokens.tolist() == [1, 2, 3, 4, 5]
    assert first.logprobs.tolist() == [-1, -2, -3]
    assert first.mask.all()
    assert (first.version_min, first.version_max) == (3, 4)
    assert second.logprobs.tolist() == [0, 0, 0]
    assert group.metrics == [{"accuracy": 1.0}] * 2


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    metrics = {"whole": 1, "right": True, "half": np.float32(0.5), "one": np.array(2.0), "text": "3", "none": None}
    run = sample(metrics={**metrics, "many": np.zeros(2), "list": [1.0], "complex": 1j})
    assert build_group([run], **IDENTIFIERS).metrics == [{"whole": 1.0, "right": 1.0, "half": 0.5, "one": 2.0}]


def test_joined_parts_have_the_samples_of_all_in_order() -> None:
    first = build_group([sample(mask=[True, False, True]), sample()], **IDENTIFIERS)
    second = build_group([sample(versions=[(0, 7)], reward=2.0)], run_id_base=2, **IDENTIFIERS | {"attempt": 2})
    joined = decode(encode(join_groups([first, second])), ExperienceGroup)
    found = list(joined.samples())
    expected = [*first.samples(), *second.samples()]
    assert [(s.run_id, s.reward, s.version_min, s.version_max) for s in found] == [
        (s.run_id, s.reward, s.version_min, s.version_max) for s in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.mask.tolist() == other.mask.tolist()
    assert (joined.attempt, len(joined.metrics), len(joined.finish_reasons)) == (1, 3, 3)


def test_parts_of_several_tasks_are_no_group() -> None:
    parts = [build_group([sample()], **IDENTIFIERS | {"task_id": task_id}) for task_id in ("a", "b")]
    with pytest.raises(SchemaError, match="one task, got parts of 2"):
        join_groups(parts)


def test_a_sample_without_a_response_is_one() -> None:
    empty = sample(response_token_ids=[], logprobs=[], versions=[])
    (back,) = decode(encode(build_group([empty], **IDENTIFIERS)), ExperienceGroup).samples()
    assert len(back.mask) == len(back.logprobs) == 0


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "at least one sample"),
        ([sample(logprobs=[-1.0])], "3 response tokens, 1 logprobs and 3 mask entries"),
        ([sample(mask=[True])], "3 response tokens, 3 logprobs and 1 mask entries"),
        ([sample(prompt_token_ids=[[1]])], "required argument is not an integer"),
    ],
)
def test_samples_that_do_not_add_up_are_refused(samples: list[Rollout], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        build_group(samples, **IDENTIFIERS)


def test_a_group_cannot_be_changed() -> None:
    group = build_group([sample()], **IDENTIFIERS)
    with pytest.raises(AttributeError, match="immutable"):
        group.task_id = "other"  # type: ignore[misc]  # that is the point
