"""Every error that the library raises on purpose.

Parts add their own below :class:`TrinityError`. A message names the value that is at fault and what to do about it.
Each error is also one of Python's own, so that ``except TimeoutError`` finds it.
"""

from schemas.errors import DecodeError, EncodeError, RecordError, SchemaError, TrinityError

# Handed on from where records are read and written; all others are defined here.
__all__ = ["DecodeError", "EncodeError", "RecordError", "SchemaError", "TrinityError"]


class ConfigError(TrinityError, ValueError):
    """A setting is wrong. The message is one line: the environment variable, its value, what would be right."""


class SupersededError(TrinityError, RuntimeError):
    """Another incarnation of this service has begun: this one counts no more, and ends."""


class NotStartedError(TrinityError, RuntimeError):
    """A client is used before it is started, or after it has been stopped."""


class NoCoordinatorError(TrinityError, ConnectionError):
    """No coordinator answers."""


class RefusedError(TrinityError, ValueError):
    """The coordinator will not do it, or it is nothing that it could be asked for. Nothing has changed."""


class UnknownBatchError(TrinityError, KeyError):
    """There is no batch of this id, or it has ended so long ago that it is not remembered."""

    def __str__(self) -> str:
        # The message, of which ``KeyError`` would return the source.
        return str(self.args[0])


class NotOwnerError(TrinityError, PermissionError):
    """It is another producer's, or only an operator may do it."""


class TimedOutError(TrinityError, TimeoutError):
    """The time that a caller has given is up. Nothing is lost: what was waited for goes on."""


class BusError(TrinityError):
    """Something between this process and the log went wrong."""


class BrokerUnreachableError(BusError, ConnectionError):
    """No broker answers, or it refuses this client."""


class CredentialsRefusedError(BrokerUnreachableError):
    """Brokers refuse this client's user, password or way to log in, or show a certificate that is not to be trusted."""


class AccessDeniedError(BusError, PermissionError):
    """The user that this process logs in as may not do this."""


class TopicMismatchError(BusError, ValueError):
    """A topic exists with other partitions or another cleanup policy than its records need."""


class UnknownTopicError(BusError, LookupError):
    """There is no such topic."""


class RecordTooLargeError(BusError, ValueError):
    """A record is larger than its topic allows. Nothing was sent."""


class SendError(BusError, ConnectionError):
    """A record was handed to the producer but is not known to be durable."""


class ProducerFencedError(BusError, RuntimeError):
    """Another producer with the same transactional id has started; this one must stop and write nothing more."""


class RecordGoneError(BusError, LookupError):
    """No record is visible at a position: deleted by retention, compacted away, aborted, or never written."""


class BrokerError(TrinityError, RuntimeError):
    """The embedded broker cannot do what was asked."""


class PortInUseError(BrokerError):
    """Another process listens on the configured port."""


class DataFolderUnusableError(BrokerError):
    """The data folder cannot be written, has no room left, holds something else, or another broker runs on it."""
