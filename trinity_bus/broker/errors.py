"""What can go wrong with the embedded broker. Each message is one line that names the cause and what to do."""

from trinity_bus.errors import TrinityError


class BrokerError(TrinityError, RuntimeError):
    """The embedded broker cannot do what was asked."""


class BrokerNotInstalledError(BrokerError):
    """The broker's Python packages are missing: the ``broker`` extra."""


class JarsUnavailableError(BrokerError):
    """A jar of the lock file could not be fetched, or what was fetched is not what the lock file says."""


class PortInUseError(BrokerError):
    """Another process listens on the configured port."""


class DataFolderInUseError(BrokerError):
    """Another broker runs on the same data folder."""


class DataFolderUnusableError(BrokerError):
    """The data folder cannot be written, has no room left, or holds something else."""


class BrokerDiedError(BrokerError):
    """Kafka ended by itself, or did not get ready in time."""
