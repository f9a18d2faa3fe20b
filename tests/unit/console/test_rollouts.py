import json
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from schemas.experience import SampledWith
from tests.support.fakes.experiences import make_group
from trinity_bus.console.index.group_rows import Tokens
from trinity_bus.console.index.terms import EventKind, Place, SamplePlace, TaskEvent, TaskTimeline
from trinity_bus.console.web.advantage import Comparison
from trinity_bus.console.web.rollouts import (
    group_runs,
    mean_of_runs,
    sample_json,
    task_tree,
    way_of_drawing,
)


def texts(tokens: Sequence[Tokens]) -> list[str]:
    return [f"{len(each)} tokens" for each in tokens]


def timeline(*events: tuple[EventKind, float, int | None, str]) -> TaskTimeline:
    place = Place("tasks", 0, 0)
    told = [TaskEvent(at, kind, attempt, "explorer-0", text, place) for kind, at, attempt, text in events]
    return TaskTimeline("t", "math", None, None, None, None, None, None, told, [])


def test_runs_stand_side_by_side_with_their_advantages() -> None:
    group = make_group(rewards=(0.67, 0.0, float("nan")), prompt=3)
    places = [SamplePlace(1, 2, 0), SamplePlace(1, 2, 1), SamplePlace(3, 4, 0)]
    compared = Comparison(name="grpo", advantages=[1.0, -1.0, None])
    prompt, runs = group_runs(group, places, compared, texts=texts, most=2)
    assert prompt == "3 tokens"
    assert [str(run.place) for run in runs] == ["1-2-0", "1-2-1"]
    assert [run.advantage is not None and run.advantage > 0 for run in runs] == [True, False]
    _, all_of_them = group_runs(group, places, compared, texts=None, most=9)
    assert (str(all_of_them[2].place), all_of_them[2].reward, all_of_them[2].advantage) == ("3-4-0", None, None)


def test_a_run_weighs_the_same_whatever_samples_it_has() -> None:
    group = replace(make_group(rewards=(0.0, 1.0, 1.0)), run_ids=np.array([0, 0, 1], np.int32))
    assert mean_of_runs(group) == (2, 0.75, 0.25)
    assert mean_of_runs(make_group(rewards=(float("nan"),))) == (1, None, None)


def test_a_sample_is_json_whatever_is_in_it() -> None:
    group = make_group(rewards=(float("nan"), 1.0))
    found = json.loads(json.dumps(sample_json(group, 0, None), allow_nan=False))
    assert found["reward"] is None
    assert len(found["response_token_ids"]) == len(found["mask"])


def test_a_way_is_a_tree_of_attempts() -> None:
    tree = task_tree(
        timeline(
            ("sent", 0.0, None, ""),
            ("dispatched", 1.0, 1, ""),
            ("dispatched", 2.0, 2, ""),
            ("cancelled", 3.0, 1, ""),
            ("finished", 4.0, 2, ""),
            ("begun", 5.0, 2, "step 4"),
            ("result", 6.0, None, "completed"),
        )
    )
    assert [(row.depth, row.event.kind, row.event.attempt) for row in tree] == [
        (0, "sent", None),
        (1, "dispatched", 1),
        (2, "cancelled", 1),
        (1, "dispatched", 2),
        (2, "finished", 2),
        (3, "begun", 2),
        (1, "result", None),
    ]


def test_of_very_many_metrics_the_first_are_shown() -> None:
    group = replace(make_group(rewards=(1.0,)), metrics=[{f"m{n:03}": 1.0 for n in range(120)} | {"reward": 1.0}])
    _, (run,) = group_runs(group, [SamplePlace(0, 0, 0)], Comparison(), texts=None, most=1)
    assert [name for name, _ in run.metrics] == [f"m{n:03}" for n in range(100)]


def test_how_a_sample_was_drawn() -> None:
    nan = float("nan")
    assert way_of_drawing(None) == ""
    assert way_of_drawing(SampledWith(1.0, 1.0, 0.0, 0.0)) == "temperature 1"
    assert way_of_drawing(SampledWith(0.5, 0.9, 20.0, 0.1)) == "temperature 0.5, top-p 0.9, top-k 20, min-p 0.1"
    assert "had a say" in way_of_drawing(SampledWith(1.0, nan, nan, nan))
