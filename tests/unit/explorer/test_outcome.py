import dataclasses
import math

import numpy as np
import pytest

from schemas import Dispatch, Position, Task
from schemas.errors import SchemaError
from schemas.trainable import Bounds
from trinity_bus.rollout import Rollout, WorkflowError
from trinity_bus.runners.errors import WorkflowRaisedError
from workers.explorer.outcome import (
    MAX_ERROR_CHARS,
    ExplorerIdentity,
    check,
    experiences,
    failed,
    finished,
    stamped,
)

WHO = ExplorerIdentity(explorer="explorer-0", incarnation="life", model="policy")
BOUNDS = Bounds(vocabulary=32, positions=64)


def order(repeat_times: int = 2, run_id_base: int = 0) -> Dispatch:
    return Dispatch(
        explorer="explorer-0",
        incarnation="life",
        task=Task(task_id="t", workflow="math", prompt="1"),
        attempt=2,
        batch_id="b",
        batch_type="train",
        repeat_times=repeat_times,
        run_id_base=run_id_base,
        timeout_s=1,
    )


def rollout(response: list[int], reward: float, versions: list[tuple[int, int]]) -> Rollout:
    return Rollout(
        prompt_token_ids=[7, 8],
        response_token_ids=response,
        logprobs=[-0.5] * len(response),
        reward=reward,
        metrics={"reward": reward},
        versions=versions,
    )


def test_a_group_carries_tokens_logprobs_and_who_drew_what() -> None:
    group = experiences(
        order(run_id_base=4), [rollout([1, 2, 3], 1.0, [(0, 5), (2, 6)]), rollout([4], 0.0, [(0, 6)])], WHO, BOUNDS
    )
    first, second = group.samples()
    assert first.tokens.tolist() == [7, 8, 1, 2, 3]
    assert (first.prompt_length, first.run_id, first.version_min, first.version_max) == (2, 4, 5, 6)
    assert second.tokens.tolist() == [7, 8, 4]
    assert (second.run_id, second.version_min) == (5, 6)
    assert group.versions.tolist() == [[0, 0, 5], [0, 2, 6], [1, 0, 6]]
    assert group.mask.all()
    np.testing.assert_array_equal(group.logprobs, np.full(4, -0.5, np.float32))
    assert (group.task_id, group.attempt, group.explorer, group.incarnation) == ("t", 2, "explorer-0", "life")


def test_a_result_sums_up_its_runs() -> None:
    runs = [rollout([1, 2, 3], 1.0, [(0, 5), (2, 6)]), rollout([4], 0.0, [(0, 6)])]
    result = finished(order(), runs, WHO, experience=Position(partition=1, offset=9), seconds=0.25)
    assert (result.status, result.completed_runs, result.total_runs, result.samples) == ("completed", 2, 2, 2)
    assert (result.version_min, result.version_max) == (5, 6)
    assert (result.prompt_tokens, result.response_tokens) == (4, 4)
    assert result.metrics == [
        {"reward": 1.0, "time/run_execution": 0.25, "time/task_execution": 0.25},
        {"reward": 0.0, "time/run_execution": 0.25, "time/task_execution": 0.25},
    ]
    assert result.error is None


def test_a_run_that_was_timed_by_itself_keeps_its_time() -> None:
    run = dataclasses.replace(rollout([1], 1.0, []), metrics={"time/run_execution": 0.125})
    result = finished(order(1), [run], WHO, experience=None, seconds=0.25)
    assert result.metrics == [{"time/run_execution": 0.125, "time/task_execution": 0.25}]


def test_rollouts_of_one_run_are_its_experiences_and_its_metrics_are_those_of_the_last() -> None:
    given = [(0, 0.25), (1, 0.5), (0, 0.75)]
    rollouts = [dataclasses.replace(rollout([1], reward, [(0, 5)]), run_id=4 + run) for run, reward in given]
    check(order(run_id_base=4), rollouts)
    result = finished(order(run_id_base=4), rollouts, WHO, experience=None, seconds=0.0)
    assert (result.status, result.completed_runs, result.total_runs, result.samples) == ("completed", 2, 2, 3)
    assert [metrics["reward"] for metrics in result.metrics] == [0.75, 0.5]
    assert experiences(order(run_id_base=4), rollouts, WHO, BOUNDS).run_ids.tolist() == [4, 5, 4]
    half = finished(order(run_id_base=4), rollouts[:1], WHO, experience=None, seconds=0.0)
    assert (half.status, half.completed_runs, half.error) == ("partial", 1, "the workflow gave 1 of 2 runs")


@pytest.mark.parametrize(("runs", "error"), [((4, None), "some of its rollouts"), ((3, 4), "run 3"), ((4, 6), "run 6")])
def test_a_run_that_was_not_asked_for_is_refused(runs: tuple[int | None, ...], error: str) -> None:
    with pytest.raises(WorkflowError, match=error):
        check(order(run_id_base=4), [dataclasses.replace(rollout([1], 1.0, []), run_id=run) for run in runs])


def test_what_no_engine_was_asked_for_is_of_the_version_that_was_served() -> None:
    asked, unasked = rollout([1, 2], 1.0, [(0, 5), (1, 6)]), rollout([3], 0.0, [])
    assert [list(run.versions) for run in stamped([asked, unasked], 4)] == [[(0, 5), (1, 6)], [(0, 4)]]
    assert list(stamped([unasked], -1)[0].versions) == []


def test_missing_runs_make_a_result_partial_and_none_or_too_many_are_no_result() -> None:
    runs = [rollout([1], 1.0, [])]
    result = finished(order(), runs, WHO, experience=None, seconds=0.0)
    assert (result.status, result.error) == ("partial", "the workflow gave 1 of 2 runs")
    for wrong in ([], runs * 3):
        with pytest.raises(WorkflowError, match=f"gave {len(wrong)} runs of task 't'"):
            check(order(), wrong)


def test_a_failure_has_its_type_and_message_and_no_reward() -> None:
    result = failed(order(), ValueError("no such thing" + "x" * 5000), WHO, seconds=1.0)
    assert (result.status, result.completed_runs, result.metrics, result.experience) == ("failed", 0, [], None)
    assert result.error is not None
    assert result.error.startswith("ValueError: no such thing")
    assert len(result.error) == MAX_ERROR_CHARS


def test_logprobs_that_are_not_the_tokens_are_refused() -> None:
    broken = Rollout(prompt_token_ids=[1], response_token_ids=[2, 3], logprobs=[-1.0], reward=math.nan)
    with pytest.raises(SchemaError):
        experiences(order(1), [broken], WHO, BOUNDS)


def test_a_partial_result_tells_the_first_error() -> None:
    runs = [rollout([1], 1.0, [])]
    result = finished(order(), runs, WHO, experience=None, seconds=0.0, error="ValueError: no such thing")
    assert result.error == "the workflow gave 1 of 2 runs; first error: ValueError: no such thing"


def test_an_error_of_a_workflow_has_the_type_that_it_had_there() -> None:
    result = failed(order(), WorkflowRaisedError("KeyError", "'answer'"), WHO, seconds=1.0)
    assert result.error == "KeyError: 'answer'"
