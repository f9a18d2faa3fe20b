import importlib
from itertools import islice
from typing import Literal

import pytest

from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.registry import get_workflow
from trinity_bus.rollout.rewards import math_reward
from trinity_bus.rollout.workflows import question_of
from workers.demo.lesson import check_tasks, load_tasks, train_stream
from workers.demo.subjects import COPY, SUBJECTS, SUMS, DemoSubject

every_subject = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=list(SUBJECTS))
of_few_words = pytest.mark.parametrize("subject", [one for one in SUBJECTS.values() if one.language])


@every_subject
def test_no_prompt_is_both_trained_on_and_held_out(subject: DemoSubject) -> None:
    train, held_out = load_tasks(subject, "train"), load_tasks(subject, "held_out")
    prompts = {question_of(task) for task in train}, {question_of(task) for task in held_out}
    count = 1600 if subject is SUMS else 800
    assert (len(train), len(held_out)) == (count, 200) == (len(prompts[0]), len(prompts[1]))
    assert prompts[0].isdisjoint(prompts[1])


@of_few_words
def test_tasks_are_of_words_that_the_model_knows_and_of_a_workflow_that_exists(subject: DemoSubject) -> None:
    assert subject.language is not None
    if subject.module is not None:
        importlib.import_module(subject.module)
    for task in load_tasks(subject, "train") + load_tasks(subject, "held_out"):
        assert task.prompt is not None
        assert set(task.prompt.split()) | set((task.answer or "").split()) <= set(subject.language.vocabulary)
        get_workflow(task.workflow)


@pytest.mark.parametrize("name", ["train", "held_out"])
async def test_sums_are_right_and_an_answer_in_words_counts(name: Literal["train", "held_out"]) -> None:
    for task in load_tasks(SUMS, name):
        _, a, b = task.task_id.split("-")
        assert task.answer == str(int(a) + int(b))
        assert question_of(task).endswith(f"{a} + {b}")
        assert task.workflow == "math"
        assert await math_reward(f"The answer is {task.answer}.", task.answer, CHECKER.same) == 1.0


def test_the_stream_repeats_prompts_but_never_ids_and_follows_its_seed() -> None:
    tasks = load_tasks(COPY, "train")
    two_rounds = list(islice(train_stream(tasks, seed=3), 2 * len(tasks)))
    assert len({task.task_id for task in two_rounds}) == len(two_rounds)
    first, second = two_rounds[: len(tasks)], two_rounds[len(tasks) :]
    assert {t.prompt for t in first} == {t.prompt for t in second} == {t.prompt for t in tasks}
    assert [t.prompt for t in first] != [t.prompt for t in second]
    assert list(islice(train_stream(tasks, seed=3), 70)) == two_rounds[:70]
    assert list(islice(train_stream(tasks, seed=4), 70)) != two_rounds[:70]


@of_few_words
def test_a_check_asks_each_digit_at_each_place_of_what_is_trained_on(subject: DemoSubject) -> None:
    tasks = check_tasks(subject)
    digits = [[word for word in (task.prompt or "").split() if word.isdigit()] for task in tasks]
    asked = {(place, digit) for of in digits for place, digit in enumerate(of)}
    assert asked == {(place, digit) for place in range(3) for digit in "0123456789"}
    assert {task.prompt for task in tasks} <= {task.prompt for task in load_tasks(subject, "train")}
