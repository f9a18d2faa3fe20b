"""How much of the coordinator each producer takes: its open tasks and their bytes. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class Use:
    tasks: int = 0
    size: int = 0  # bytes


class Usage:
    """What all producers take; those that take nothing are not kept."""

    def __init__(self) -> None:
        self._uses: dict[str, Use] = {}

    def __len__(self) -> int:
        return len(self._uses)

    def of(self, producer: str) -> Use:
        return self._uses.get(producer) or Use()

    def add(self, producer: str, size: int) -> None:
        use = self._uses.get(producer)
        if use is None:
            use = self._uses[producer] = Use()
        use.tasks += 1
        use.size += size

    def remove(self, producer: str, size: int) -> None:
        use = self._uses[producer]
        use.tasks -= 1
        use.size -= size
        if not use.tasks:
            del self._uses[producer]
