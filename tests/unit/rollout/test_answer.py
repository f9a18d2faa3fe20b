"""What a workflow gave becomes one record in its runner; its explorer takes it for nothing that it is not."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas import Rollout, Sampling
from schemas.codec import decode, encode
from schemas.errors import DecodeError, SchemaError
from schemas.experience import ExperienceGroup
from schemas.groups.trainable import Bounds
from tests.support.fakes.experiences import kept_of
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.rollout.answer import MAX_METRIC_NAME, decode_answer, encode_answer
from trinity_bus.rollout.workflow import WorkflowError
from trinity_bus.training.steps.choice import left_out

ORDER = dispatch(run_id_base=4)


def rollout(**changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "prompt_token_ids": [7, 8], "response_token_ids": [1, 2, 3], "logprobs": [-0.5] * 3, "reward": 1.0,
        "metrics": {"reward": 1.0}, "versions": [(0, 5), (2, 6)],
    }  # fmt: skip
    return Rollout(**fields | changes)


def answer(*runs: Rollout) -> bytes:
    return encode_answer(ORDER, runs, "policy")


def test_a_group_carries_tokens_logprobs_and_who_drew_what() -> None:
    other = rollout(response_token_ids=(4,), logprobs=np.array([-0.5]), mask=[0], versions=[(0, 6)])
    group = decode_answer(ORDER, answer(rollout(), other), "policy")
    first, second = group.samples()
    assert first.tokens.tolist() == [7, 8, 1, 2, 3]
    assert (first.prompt_length, first.run_id, first.version_min, first.version_max) == (2, 4, 5, 6)
    assert second.tokens.tolist() == [7, 8, 4]
    assert (second.run_id, second.version_min, second.mask.tolist()) == (5, 6, [False])
    assert group.versions.tolist() == [[0, 0, 5], [0, 2, 6], [1, 0, 6]]
    np.testing.assert_array_equal(group.logprobs, np.full(4, -0.5, np.float32))
    assert (group.task_id, group.attempt, group.explorer, group.incarnation) == ("t", 2, "explorer-0", "life")


def test_routes_are_of_all_samples_or_of_none() -> None:
    routed = rollout(routes=np.ones((4, 2, 1), np.uint8))
    samples = decode_answer(ORDER, answer(routed, routed), "policy").samples()
    assert [sample.routes.shape for sample in samples if sample.routes is not None] == [(5, 2, 1)] * 2
    assert decode_answer(ORDER, answer(routed, rollout()), "policy").routes is None


def test_what_was_kept_is_for_whoever_trains_on_it() -> None:
    limited = rollout(kept=bytearray(kept_of([1, 5], [2], [3, 9])), sampling=Sampling(temperature=1.0, top_p=0.9))
    group = decode_answer(ORDER, answer(limited, rollout()), "policy")
    assert [sample.kept is None for sample in group.samples()] == [False, True]
    assert left_out([group], Bounds(32, 32), train_limited=False, wants_greedy=False) == []
    asked = dataclasses.replace(limited, kept=None)
    told = decode_answer(ORDER, answer(limited, asked), "policy")
    (left,) = left_out([told], Bounds(32, 32), train_limited=False, wants_greedy=False)
    assert (left.reason, left.samples) == ("limited_sampling", [1])
    of_eval = dispatch(run_id_base=4, batch_type="eval")
    assert decode_answer(of_eval, encode_answer(of_eval, [limited], "policy"), "policy").kept is None


def test_a_runner_refuses_what_is_no_answer() -> None:
    for wrong in ([], [rollout()] * 3):
        with pytest.raises(WorkflowError, match=f"gave {len(wrong)} runs of task 't', asked for were 2"):
            answer(*wrong)
    with pytest.raises(WorkflowError, match="run 1 has 65 metrics, at most 64 are sent"):
        answer(rollout(), rollout(metrics={f"m{i}": 0.0 for i in range(65)}))
    with pytest.raises(WorkflowError, match="whose name is of 201 characters"):
        answer(rollout(metrics={"m" * (MAX_METRIC_NAME + 1): 0.0}))
    for changes in ({"logprobs": [-1.0]}, {"mask": [True]}, {"response_token_ids": [1, 2, 1 << 40]}):
        with pytest.raises(SchemaError, match="task 't', sample 0: "):
            answer(rollout(**changes))
    with pytest.raises(AttributeError):
        encode_answer(ORDER, ["no rollout"], "policy")  # type: ignore[list-item]  # a workflow may return anything


def test_several_samples_of_a_run_name_it() -> None:
    group = decode_answer(ORDER, answer(*(rollout(run_id=run) for run in (4, 5, 4, 4))), "policy")
    assert group.run_ids.tolist() == [4, 5, 4, 4]
    with pytest.raises(SchemaError, match="some rollouts say of which run they are, others do not"):
        answer(rollout(run_id=4), rollout())
    for wrong in (3, 6):
        with pytest.raises(WorkflowError, match=f"gave run {wrong} of task 't', asked for were 4 to 5"):
            answer(rollout(run_id=4), rollout(run_id=wrong))


def test_what_no_engine_was_asked_for_is_of_the_version_that_was_served() -> None:
    given = [rollout(), rollout(versions=())]
    group = decode_answer(ORDER, encode_answer(ORDER, given, "policy", 3), "policy")
    assert group.versions.tolist() == [[0, 0, 5], [0, 2, 6], [1, 0, 3]]
    assert len(decode_answer(ORDER, answer(rollout(versions=())), "policy").versions) == 0


def test_a_reward_beyond_its_column_and_one_that_is_none_are_carried_for_the_explorer_to_judge() -> None:
    rewards = decode_answer(ORDER, answer(rollout(reward=1e39), rollout(reward=math.nan)), "policy").rewards
    assert rewards[0] == math.inf
    assert math.isnan(rewards[1])


LIES: list[Mapping[str, Any]] = [
    {"task_id": "other"},
    {"attempt": 3},
    {"batch_id": "other"},
    {"batch_type": "eval"},
    {"workflow": "other"},
    {"explorer": "explorer-1"},
    {"incarnation": "other"},
    {"model": "other"},
    {"run_ids": np.array([0, 1], np.int32)},
    {"run_ids": np.array([4, 6], np.int32)},
    {"metrics": []},
    {"metrics": [{}, {"m" * (MAX_METRIC_NAME + 1): 0.0}]},
]


@pytest.mark.parametrize("lie", LIES, ids="-".join)
def test_an_explorer_refuses_a_group_that_was_not_asked_for(lie: Mapping[str, Any]) -> None:
    honest = decode(answer(rollout(), rollout()), ExperienceGroup)
    with pytest.raises(WorkflowError):
        decode_answer(ORDER, encode(msgspec.structs.replace(honest, **lie)), "policy")


def test_an_explorer_refuses_more_runs_than_it_asked_for_and_bytes_that_are_no_group() -> None:
    many = encode_answer(ORDER.model_copy(update={"repeat_times": 3}), [rollout()] * 3, "policy")
    with pytest.raises(WorkflowError, match="gave 3 runs"):
        decode_answer(ORDER, many, "policy")
    for wrong in (b"", b"x", encode(ORDER), answer(rollout())[:-1]):
        with pytest.raises(DecodeError):
            decode_answer(ORDER, wrong, "policy")
