"""Which examples a step learns from follows from their number, the seed and the step alone."""

from hypothesis import given
from hypothesis import strategies as st

from workers.trainer.examples import chosen


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_each_epoch_has_every_example_once(count: int, per_step: int, seed: int) -> None:
    places = [place for step in range(1, 9) for place in chosen(count, per_step, seed=seed, step=step)]
    assert len(places) == 8 * per_step
    for begin in range(0, len(places) - count + 1, count):
        assert sorted(places[begin : begin + count]) == list(range(count))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(chosen(20, 20, seed=seed, step=step)) for seed in (0, 1) for step in (1, 2, 3)}
    assert len(orders) == 6
