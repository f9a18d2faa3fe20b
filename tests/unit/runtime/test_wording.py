import pytest

from schemas.errors import by_number, counted


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "task", "1 task"),
        (0, "task", "0 tasks"),
        (2, "open batch", "2 open batches"),
        (1_234_567, "line", "1,234,567 lines"),
    ],
)
def test_things_are_counted_in_the_right_number(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said
    assert by_number(count, "is", "are") == ("is" if count == 1 else "are")
