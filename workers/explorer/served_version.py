"""The model version that an explorer serves, to be waited for; a fixed checkpoint is not waited for."""

import asyncio


class ServedVersion:
    """A version that only its owner changes, and anybody can wait for; -1 for none."""

    def __init__(self, version: int = -1, *, fixed: bool = False) -> None:
        self._version = version
        self._fixed = fixed
        self._changed = asyncio.Event()

    @property
    def version(self) -> int:
        return self._version

    def set(self, version: int) -> None:
        """Another version is served. It may be older: a trainer that starts anew may go back."""
        self._version = version
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for(self, at_least: int) -> None:
        """Return as soon as a version of at least this is served; at once where it stays as it is."""
        while self._version < at_least and not self._fixed:
            await self._changed.wait()
