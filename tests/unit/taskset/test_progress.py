from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Task, TasksetPosition
from schemas.codec import decode, encode
from trinity_bus.config import TasksetSettings
from workers.taskset.dataset import Dataset, Gym, Ordered, PassRates, make_order
from workers.taskset.description import DatasetError
from workers.taskset.service import TasksetProgress

TASKS = [Task(task_id=f"t-{i}", workflow="math", prompt="1 + 1") for i in range(5)]
DATASET = Dataset([Ordered(TASKS, make_order("shuffled", 5, 0, (), PassRates(5)))], [1], fingerprint="00ff", lines={})

EVENTS = ["produce", "produce, not committed", "answer", "refuse", "restart"]


def progress(last: TasksetPosition | None = None, *, ahead: int = 4, epochs: int | None = 3) -> TasksetProgress:
    return TasksetProgress(TasksetSettings(name="set", ahead=ahead, epochs=epochs), DATASET, last)


@given(ahead=st.integers(1, 20), events=st.lists(st.sampled_from(EVENTS), max_size=200))
def test_every_line_is_produced_once_and_never_too_far_ahead(ahead: int, events: list[str]) -> None:
    state = progress(ahead=ahead)
    committed: TasksetPosition | None = None
    log: list[str] = []
    answers: list[tuple[str, str]] = []
    read = {"result": 0, "dead letter": 0}
    for event in events:
        match event:
            case "produce" | "produce, not committed":
                count = state.room
                tasks = [DATASET.task("set", state.produced + i).task_id for i in range(count)]
                state.produced += count
                assert state.produced - state.ended <= ahead
                if event == "produce":
                    log += tasks
                    committed = decode(encode(state.position()), TasksetPosition)
                    continue
            case "answer" | "refuse":
                waiting = log[len(answers) :]
                if waiting:
                    answers.append(("result" if event == "answer" else "dead letter", waiting[0]))
        # A restart: everything that was not committed is forgotten, answers are read again from where it says.
        if event in {"restart", "produce, not committed"}:
            state = progress(committed, ahead=ahead)
            read = {"result": state.results.get(0, 0), "dead letter": state.dead_letters.get(0, 0)}
        for kind in read:
            of_kind = [task_id for what, task_id in answers if what == kind]
            for offset in range(read[kind], len(of_kind)):
                if kind == "result":
                    state.read_result(of_kind[offset], 0, offset)
                else:
                    state.read_dead_letter(of_kind[offset], 0, offset)
            read[kind] = len(of_kind)
        assert state.ended == len(answers)
    assert log == [DATASET.task("set", k).task_id for k in range(len(log))]
    assert len(log) <= 15


def test_it_is_done_when_every_task_of_its_own_has_ended() -> None:
    state = progress(epochs=1, ahead=10)
    assert state.room == 5
    state.produced = 5
    assert state.room == 0
    for offset in range(5):
        assert not state.done
        state.read_result(DATASET.task("set", offset).task_id, 0, offset)
    assert state.done
    state = progress()
    for task_id in ["other/0/t-1", "set/exam/3/t-1", "set2/0/t-1", "set"]:
        state.read_result(task_id, 0, 0)
        state.read_dead_letter(task_id, 0, 0)
    state.read_dead_letter(None, 0, 1)
    assert state.ended == 0
    assert (state.results, state.dead_letters) == ({0: 1}, {0: 2})


def test_versions_are_examined_at_their_interval_and_once() -> None:
    state = progress()
    assert [version for version in range(25) if state.is_eval_due(version)] == [0, 10, 20]
    state.examined = 10
    assert [version for version in range(25) if state.is_eval_due(version)] == [20]


def test_rewards_of_our_own_tasks_are_learned_and_nobody_elses() -> None:
    rates = PassRates(5)
    order = make_order("by_difficulty", 5, 0, (), rates)
    dataset = Dataset([Ordered(TASKS, order)], [1], "00ff", {f"t-{i}": (rates, i) for i in range(5)})
    state = TasksetProgress(TasksetSettings(name="set"), dataset, None)
    for i in range(1, 5):
        state.read_result(f"set/{i}/t-{i}", 0, i, 0.0)
    state.learn("set/9/t-0", 0.5)
    for not_ours in ("other/9/t-0", "set/exam/3/t-0", "set/9/unknown"):
        state.learn(not_ours, 0.0)
    drawn = [dataset.task("set", place).task_id.rpartition("/")[2] for place in range(200)]
    assert drawn.count("t-0") > 130, "1 beside four times 0.05"


def test_what_has_no_end_has_no_epochs() -> None:
    class Endless:
        size = None

        def use(self, place: int) -> tuple[int, Task]:
            return 0, TASKS[0]

    endless = Dataset([cast("Gym", Endless())], [1], "00ff", {})
    with pytest.raises(DatasetError, match="'set' has no end, and so no epochs"):
        TasksetProgress(TasksetSettings(name="set", epochs=1), endless, None)
