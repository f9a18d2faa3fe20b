"""What can go wrong with the embedded broker. Each message is one line that names the cause and what to do."""

from trinity_bus.errors import TrinityError


class BrokerError(TrinityError, RuntimeError):
    """The embedded broker cannot do what was asked."""


class PortInUseError(BrokerError):
    """Another process listens on the configured port."""


class DataFolderUnusableError(BrokerError):
    """The data folder cannot be written, has no room left, holds something else, or another broker runs on it."""
