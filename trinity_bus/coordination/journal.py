"""Which entries of the state changed since the changelog was last written."""


class Journal:
    """A set of keys in order of first change. What an entry holds is looked up when the changelog is taken."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def touch(self, key: str) -> None:
        """The entry under ``key`` was made, changed or removed."""
        self._keys[key] = None

    def take(self) -> list[str]:
        """The changed keys; forgets them."""
        keys = list(self._keys)
        self._keys.clear()
        return keys
