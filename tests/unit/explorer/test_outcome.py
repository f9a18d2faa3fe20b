import dataclasses
from typing import Any

import pytest

from schemas import ExperienceGroup, ExperiencePiece, Position, Rollout, RolloutFinished
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


def rollout(response: list[int], reward: float, versions: list[tuple[int, int]] | None = None, **more: Any) -> Rollout:
    given = {"metrics": {"reward": reward}, "versions": versions or [(0, 6)], **more}
    return Rollout(
        prompt_token_ids=[7, 8], response_token_ids=response, logprobs=[-0.5] * len(response), reward=reward, **given
    )


def group(runs: list[Rollout], run_id_base: int = 0) -> ExperienceGroup:
    given = dispatch(run_id_base=run_id_base)
    return decode_answer(given, encode_answer(given, runs, "policy"), "policy")


def result(runs: list[Rollout], *, run_id_base: int = 0, repeat_times: int = 2, **more: Any) -> RolloutFinished:
    order = dispatch(repeat_times=repeat_times)
    return finished(order, group(runs, run_id_base), **{"seconds": 0.25, **more})


def test_a_sample_that_no_model_can_be_trained_on_is_named_by_its_run() -> None:
    runs = group([rollout([1], 1.0), rollout([40], 1.0)], run_id_base=4)
    check_trainable(runs, Bounds(vocabulary=41, positions=64))
    with pytest.raises(UntrainableSampleError, match=r"^run 5: token id 40 is not one of"):
        check_trainable(runs, Bounds(vocabulary=32, positions=64))


def test_a_result_sums_up_its_runs() -> None:
    runs = [rollout([1, 2, 3], 1.0, [(0, 5), (2, 6)]), rollout([4], 0.0)]
    told = result(runs, experience=Position(partition=1, offset=9))
    assert (told.status, told.completed_runs, told.total_runs, told.samples) == ("completed", 2, 2, 2)
    assert (told.version_min, told.version_max, told.prompt_tokens, told.response_tokens) == (5, 6, 4, 4)
    times = {"time/run_execution": 0.25, "time/task_execution": 0.25}
    assert (told.metrics, told.error) == ([{"reward": reward, **times} for reward in (1.0, 0.0)], None)
    # Of a group in pieces it names all of them, and no single one.
    pieces = [ExperiencePiece(samples=1, position=Position(partition=1, offset=offset)) for offset in (9, 11)]
    told = result(runs, pieces=pieces)
    assert (told.experience, told.pieces, told.samples) == (None, pieces, 2)


def test_a_run_that_was_timed_by_itself_keeps_its_time() -> None:
    told = result([rollout([1], 1.0, metrics={"time/run_execution": 0.125})], repeat_times=1)
    assert told.metrics == [{"time/run_execution": 0.125, "time/task_execution": 0.25}]


def test_rollouts_of_one_run_are_its_experiences_and_its_metrics_are_of_all_of_them() -> None:
    given = [(0, 0.25), (1, 0.5), (0, 0.75)]
    rollouts = [dataclasses.replace(rollout([1], reward), run_id=4 + run) for run, reward in given]
    told = result(rollouts, run_id_base=4)
    assert (told.status, told.completed_runs, told.total_runs, told.samples) == ("completed", 2, 2, 3)
    assert [metrics["reward"] for metrics in told.metrics] == [0.5, 0.5]
    half = result(rollouts[::2], run_id_base=4, error="ValueError: no")
    assert (half.status, half.completed_runs, half.samples) == ("partial", 1, 2)
    assert half.error == "the workflow gave 1 of 2 runs; first error: ValueError: no"
    assert result(rollouts[::2], run_id_base=4).error == "the workflow gave 1 of 2 runs"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such thing" + "x" * 5000), f"ValueError: no such thing{'x' * 5000}"[:MAX_ERROR_CHARS]),
        # That of a workflow has the type that it had there.
        (WorkflowRaisedError("KeyError", "'answer'"), "KeyError: 'answer'"),
    ],
)
def test_a_failure_has_its_type_and_message_and_no_reward(error: Exception, told: str) -> None:
    of = failed(dispatch(), error, WHO, seconds=1.0)
    assert (of.status, of.completed_runs, of.metrics, of.experience, of.error) == ("failed", 0, [], None, told)
