"""The model version that an explorer serves, to be waited for."""

import asyncio


class ServedVersion:
    """A version that only its owner changes, and anybody can wait for.

    Args:
        version: To begin with; -1 for none.
    """

    def __init__(self, version: int = -1) -> None:
        self._version = version
        self._changed = asyncio.Event()

    @property
    def version(self) -> int:
        """The version that is served now; -1 for none."""
        return self._version

    def set(self, version: int) -> None:
        """Another version is served. It may be older: a trainer that starts anew may go back."""
        self._version = version
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for(self, at_least: int) -> None:
        """Return as soon as a version of at least this is served."""
        while self._version < at_least:
            await self._changed.wait()
