"""What tests know of types, and mypy does not."""


def some[T](value: T | None) -> T:
    """A value that is there."""
    assert value is not None
    return value
