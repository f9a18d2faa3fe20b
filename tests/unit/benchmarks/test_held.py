from benchmarks._soak.held import held
from trinity_bus.coordination.deadlines import Deadlines


def test_each_collection_counts_by_the_way_to_it_and_those_of_one_kind_together() -> None:
    found = held({"a": {"x": [1, 2], "y": [3]}, "b": ("text", {4, 5})})
    assert found == {"a": 2, "a[]": 3, "b": 2, "b[]": 2}


def test_what_is_reached_twice_counts_once() -> None:
    shared = [1, 2, 3]
    assert sum(held({"a": shared, "b": [shared]}).values()) == 3 + 1


def test_our_objects_are_looked_into() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("key", 1.0)
    assert held({"root": deadlines}) == {"root._times": 1, "root._heap": 1, "root._heap[]": 3}
