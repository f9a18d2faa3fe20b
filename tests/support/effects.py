"""What tests read of the machine's effects."""

from collections.abc import Iterable

from trinity_bus.coordination import Effect, Write


def written[R](effects: Iterable[Effect], kind: type[R]) -> list[R]:
    """Return the records of one kind that are to be written, in their order."""
    return [effect.record for effect in effects if isinstance(effect, Write) and isinstance(effect.record, kind)]
