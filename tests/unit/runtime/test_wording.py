import pytest

from trinity_bus.runtime.wording import by_number, counted


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(1, "task", "1 task"), (0, "task", "0 tasks"), (2, "open batch", "2 open batches"), (1, "batch", "1 batch")],
)
def test_things_are_counted_in_the_right_number(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said


def test_a_large_number_can_be_read() -> None:
    assert counted(1_234_567, "line") == "1,234,567 lines"


def test_what_is_said_goes_by_the_number() -> None:
    assert [by_number(count, "is", "are") for count in (0, 1, 2)] == ["are", "is", "are"]
