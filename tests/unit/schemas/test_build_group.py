from typing import Any

import numpy as np
import pytest

from schemas import ExperienceGroup, Rollout, SampledWith, Sampling, Task, build_group
from schemas.codec import EncodeError, SchemaError, decode, encode
from schemas.groups.pieces import join_groups
from schemas.groups.trainable import Bounds, flaws
from tests.support.fakes.experiences import kept_of
from tests.unit.schemas.record_strategies import OF_GROUP


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


def built(*samples: Rollout, **of: Any) -> Any:
    """A group as a reader has it."""
    return decode(encode(build_group(list(samples), **OF_GROUP | of)), ExperienceGroup)


@pytest.mark.parametrize(("asked", "drawn"), [(0.0, 0.0), (1e-30, 0.01), (1e-6, 0.01), (0.01, 0.01), (0.02, 0.02)])
def test_what_is_told_of_a_low_temperature_is_what_vllm_draws_with(asked: float, drawn: float) -> None:
    told = Sampling(temperature=asked)
    assert told.temperature == drawn
    group = built(sample(sampling=told))
    assert flaws(group, Bounds(vocabulary=1 << 31, positions=1 << 20)) == []


def test_tasks_of_engines_that_draw_at_higher_temperatures_than_vllm_are_read() -> None:
    task = decode(b'{"task_id": "t", "workflow": "math", "prompt": "1", "sampling": {"temperature": 10}}', Task)
    assert task.sampling is not None
    assert task.sampling.temperature == 10


def test_lists_tuples_and_arrays_of_other_types_are_taken() -> None:
    group = built(sample(), sample(logprobs=np.zeros(3, np.float16)))
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
    assert build_group([run], **OF_GROUP).metrics == [{"whole": 1.0, "right": 1.0, "half": 0.5, "one": 2.0}]


def test_joined_parts_of_one_task_have_the_samples_of_all_in_order() -> None:
    first = build_group([sample(mask=[True, False, True]), sample()], **OF_GROUP)
    second = build_group([sample(versions=[(0, 7)], reward=2.0)], run_id_base=2, **OF_GROUP | {"attempt": 2})
    joined = decode(encode(join_groups([first, second])), ExperienceGroup)
    found = list(joined.samples())
    expected = [*first.samples(), *second.samples()]
    for one, other in zip(found, expected, strict=True):
        for name in ("run_id", "reward", "version_min", "version_max"):
            assert getattr(one, name) == getattr(other, name)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.mask.tolist() == other.mask.tolist()
    assert (joined.attempt, len(joined.metrics), len(joined.finish_reasons)) == (1, 3, 3)
    parts = [build_group([sample()], **OF_GROUP | {"task_id": task_id}) for task_id in ("a", "b")]
    with pytest.raises(SchemaError, match="one task, got parts of 2"):
        join_groups(parts)


def test_a_sample_without_a_response_is_one() -> None:
    empty = sample(response_token_ids=[], logprobs=[], versions=[])
    (back,) = built(empty).samples()
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
        build_group(samples, **OF_GROUP)


def test_a_group_cannot_be_changed() -> None:
    group = build_group([sample()], **OF_GROUP)
    with pytest.raises(AttributeError, match="immutable"):
        group.task_id = "other"  # type: ignore[misc]  # that is the point


# What a group may lack


def test_what_some_samples_know_is_unknown_of_the_others() -> None:
    told = sample(
        turn_starts=[0, 2],
        turn_rewards=[1, 2],
        sampling=Sampling(temperature=0.5, top_k=-1),
        teacher_logprobs=[-1, -2, -3],
    )
    first, second = built(told, sample()).samples()
    assert (first.turn_starts.tolist(), first.turn_rewards.tolist()) == ([0, 2], [1, 2])
    assert first.teacher_logprobs.tolist() == [-1, -2, -3]
    assert first.sampling == SampledWith(0.5, 1, 0, 0)
    assert not first.sampling.is_limited
    assert (len(second.turn_starts), len(second.turn_rewards), second.sampling) == (0, 0, None)
    np.testing.assert_equal(second.teacher_logprobs, np.full(3, np.nan, np.float32))


def test_samples_that_do_not_say_it_were_drawn_as_the_group_says() -> None:
    own = sample(sampling=Sampling(temperature=0.5))
    group = build_group([own, sample()], sampling=Sampling(temperature=1.0, top_p=0.5), **OF_GROUP)
    assert [one.sampling for one in group.samples()] == [SampledWith(0.5, 1, 0, 0), SampledWith(1, 0.5, 0, 0)]
    (only,) = build_group([sample()], sampling=Sampling(temperature=2.0), **OF_GROUP).samples()
    assert only.sampling == SampledWith(2, 1, 0, 0)


LIMITS: dict[str, Any] = {
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "temperature": 0.0,
    "repetition_penalty": 1.2,
    "allowed_token_ids": [1],
}


@pytest.mark.parametrize("limits", [{name: value} for name, value in LIMITS.items()], ids=str)
def test_what_is_not_the_whole_softmax_is_told(limits: dict[str, Any]) -> None:
    group = built(sample(sampling=Sampling(**{"temperature": 1.0, **limits})))
    assert flaws(group, Bounds(100, 100)) == []
    (one,) = group.samples()
    assert one.sampling.is_limited


def test_an_engine_never_runs_the_last_token() -> None:
    routes = np.arange(4 * 3 * 2).reshape(4, 3, 2)
    (one,) = built(sample(routes=routes)).samples()
    assert one.routes.dtype == np.uint8
    assert one.routes.tolist() == [*routes.tolist(), routes[-1].tolist()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn_rewards": [1.0]}, "turn_rewards: 1 entries for 0 turns"),
        ({"turn_starts": [0], "turn_rewards": [1.0, 2.0]}, "turn_rewards: 2 entries for 1 turns"),
        ({"teacher_logprobs": [-1.0]}, "teacher_logprobs: 1 entries for 3 response tokens"),
        ({"turn_starts": ["x"]}, "turn_starts: required argument is not an integer"),
        ({"routes": np.zeros((3, 1, 1), np.uint8)}, r"routes: shape \[3, 1, 1\], where \[5 or one less, layers, k\]"),
        ({"routes": np.zeros((5, 2), np.uint8)}, r"routes: shape \[5, 2\]"),
        ({"routes": np.full((5, 1, 1), 256)}, "routes: experts 256 to 256 are not within 0 to 255"),
        ({"kept": kept_of([3], [4])}, "kept: sets of kept tokens of 2 of 3 response tokens"),
    ],
)
def test_optional_columns_that_do_not_add_up_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=f"task 'task-1', sample 0: {message}"):
        build_group([sample(**changes)], **OF_GROUP)


def test_all_of_a_group_have_routes_or_none() -> None:
    with pytest.raises(SchemaError, match="sample 1: routes: it has none, and others of the group have some"):
        build_group([sample(routes=np.zeros((5, 1, 1), np.uint8)), sample()], **OF_GROUP)


@pytest.mark.parametrize("starts", [[0, 3], [-1], [1, 1], [2, 1]])
def test_turns_are_in_order_and_in_range(starts: list[int]) -> None:
    with pytest.raises(EncodeError, match="turn_starts has"):
        encode(build_group([sample(turn_starts=starts)], **OF_GROUP))


def test_of_a_part_that_lacks_a_column_nothing_is_known_and_routes_are_all_or_nothing() -> None:
    routes = np.arange(5, dtype=np.uint8).reshape(5, 1, 1)
    drawn_from = kept_of([3, 9], [4], [5])
    told = sample(
        turn_starts=[0, 2], turn_rewards=[1, 2], sampling=Sampling(temperature=0.5), routes=routes, kept=drawn_from
    )
    first = build_group([sample(), sample()], **OF_GROUP)
    second = build_group([told], **OF_GROUP)
    joined: Any = decode(encode(join_groups([first, second])), ExperienceGroup)
    assert joined.turn_starts.tolist() == [[2, 0], [2, 2]]
    assert [one.sampling for one in joined.samples()] == [None, None, SampledWith(0.5, 1, 0, 0)]
    assert [None if one.kept is None else bytes(one.kept) for one in joined.samples()] == [None, None, drawn_from]
    assert joined.routes is None
    whole: Any = join_groups([second, second])
    assert whole.routes.tolist() == [*routes.tolist(), *routes.tolist()]
    wide = build_group([sample(routes=np.zeros((5, 1, 2), np.uint8))], **OF_GROUP)
    assert join_groups([second, wide]).routes is None
    untold = build_group([sample(turn_starts=[1])], **OF_GROUP)
    np.testing.assert_equal(join_groups([untold, second]).turn_rewards, np.array([np.nan, 1, 2], np.float32))
