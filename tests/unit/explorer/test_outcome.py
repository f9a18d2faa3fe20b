import dataclasses

import pytest

from schemas import ExperienceGroup, ExperiencePiece, Position, Rollout
from schemas.groups.trainable import Bounds
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.rollout.answer import decode_answer, encode_answer
from trinity_bus.runners.service import WorkflowRaisedError
from workers.explorer.outcome import (
    MAX_ERROR_CHARS,
    ExplorerIdentity,
    UntrainableSampleError,
    check_trainable,
    failed,
    finished,
)

WHO = ExplorerIdentity(explorer="explorer-0", incarnation="life", model="policy")


def rollout(response: list[int], reward: float, versions: list[tuple[int, int]]) -> Rollout:
    return Rollout(
        prompt_token_ids=[7, 8], response_token_ids=response, logprobs=[-0.5] * len(response), reward=reward,
        metrics={"reward": reward}, versions=versions,
    )  # fmt: skip


def group(runs: list[Rollout], run_id_base: int = 0) -> ExperienceGroup:
    given = dispatch(run_id_base=run_id_base)
    return decode_answer(given, encode_answer(given, runs, "policy"), "policy")


def test_a_sample_that_no_model_can_be_trained_on_is_named_by_its_run() -> None:
    runs = group([rollout([1], 1.0, []), rollout([40], 1.0, [])], run_id_base=4)
    check_trainable(runs, Bounds(vocabulary=41, positions=64))
    with pytest.raises(UntrainableSampleError, match=r"^run 5: token id 40 is not one of"):
        check_trainable(runs, Bounds(vocabulary=32, positions=64))


def test_a_result_sums_up_its_runs() -> None:
    runs = [rollout([1, 2, 3], 1.0, [(0, 5), (2, 6)]), rollout([4], 0.0, [(0, 6)])]
    result = finished(dispatch(), group(runs), experience=Position(partition=1, offset=9), seconds=0.25)
    assert (result.status, result.completed_runs, result.total_runs, result.samples) == ("completed", 2, 2, 2)
    assert (result.version_min, result.version_max) == (5, 6)
    assert (result.prompt_tokens, result.response_tokens) == (4, 4)
    assert result.metrics == [
        {"reward": 1.0, "time/run_execution": 0.25, "time/task_execution": 0.25},
        {"reward": 0.0, "time/run_execution": 0.25, "time/task_execution": 0.25},
    ]
    assert result.error is None


def test_a_result_of_a_group_in_pieces_names_all_of_them_and_no_single_one() -> None:
    runs = [rollout([1, 2, 3], 1.0, [(0, 5)]), rollout([4], 0.0, [(0, 6)])]
    pieces = [ExperiencePiece(samples=1, position=Position(partition=1, offset=offset)) for offset in (9, 11)]
    result = finished(dispatch(), group(runs), pieces=pieces, seconds=0.25)
    assert (result.experience, result.pieces, result.samples) == (None, pieces, 2)


def test_a_run_that_was_timed_by_itself_keeps_its_time() -> None:
    run = dataclasses.replace(rollout([1], 1.0, []), metrics={"time/run_execution": 0.125})
    result = finished(dispatch(repeat_times=1), group([run]), experience=None, seconds=0.25)
    assert result.metrics == [{"time/run_execution": 0.125, "time/task_execution": 0.25}]


def test_rollouts_of_one_run_are_its_experiences_and_its_metrics_are_of_all_of_them() -> None:
    given = [(0, 0.25), (1, 0.5), (0, 0.75)]
    rollouts = [dataclasses.replace(rollout([1], reward, [(0, 5)]), run_id=4 + run) for run, reward in given]
    result = finished(dispatch(), group(rollouts, run_id_base=4), experience=None, seconds=0.0)
    assert (result.status, result.completed_runs, result.total_runs, result.samples) == ("completed", 2, 2, 3)
    assert [metrics["reward"] for metrics in result.metrics] == [0.5, 0.5]
    half = finished(dispatch(), group(rollouts[::2], run_id_base=4), experience=None, seconds=0.0)
    assert (half.status, half.completed_runs, half.samples) == ("partial", 1, 2)
    assert half.error == "the workflow gave 1 of 2 runs"


def test_a_failure_has_its_type_and_message_and_no_reward() -> None:
    result = failed(dispatch(), ValueError("no such thing" + "x" * 5000), WHO, seconds=1.0)
    assert (result.status, result.completed_runs, result.metrics, result.experience) == ("failed", 0, [], None)
    assert result.error is not None
    assert result.error.startswith("ValueError: no such thing")
    assert len(result.error) == MAX_ERROR_CHARS


@pytest.mark.parametrize(("error", "told"), [(None, ""), ("ValueError: no", "; first error: ValueError: no")])
def test_missing_runs_make_a_result_partial_that_tells_the_first_error(error: str | None, told: str) -> None:
    result = finished(dispatch(), group([rollout([1], 1.0, [])]), experience=None, seconds=0.0, error=error)
    assert (result.status, result.error) == ("partial", f"the workflow gave 1 of 2 runs{told}")


def test_an_error_of_a_workflow_has_the_type_that_it_had_there() -> None:
    result = failed(dispatch(), WorkflowRaisedError("KeyError", "'answer'"), WHO, seconds=1.0)
    assert result.error == "KeyError: 'answer'"
