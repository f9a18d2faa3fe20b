"""Every error that the library raises on purpose.

::

    TrinityError
    +-- ConfigError (ValueError)                    a setting is wrong; one line: which, and what would be right
    +-- SupersededError                             another process has this service's name, and took its place
    +-- BusError
        +-- BrokerUnreachableError (ConnectionError)    nothing answers at the configured address
        +-- AccessDeniedError (PermissionError)         the user may not do this on the cluster
        +-- TopicMismatchError                          a topic exists, but is not what its records need
        +-- RecordTooLargeError (ValueError)            a record is over its topic's limit; it was not sent
        +-- SendError                                   a record is not known to be durable
        +-- ProducerFencedError                         another process has taken over this transactional id
        +-- RecordGoneError (LookupError)               a position in the log holds no record that can be read

Parts add their own below :class:`TrinityError`. A message names the value that is at fault and what to do about it.
Errors of a record's *content* are ``schemas.errors.SchemaError``; they become dead letters, and no reader raises them.
"""


class TrinityError(Exception):
    """Base of all errors of the library."""


class ConfigError(TrinityError, ValueError):
    """A setting is wrong. The message is one line: the environment variable, its value, what would be right."""


class SupersededError(TrinityError):
    """Another incarnation of this service has begun: this one counts no more, and ends."""


class BusError(TrinityError):
    """Something between this process and the log went wrong."""


class BrokerUnreachableError(BusError, ConnectionError):
    """No broker answers, or it refuses this client."""


class AccessDeniedError(BusError, PermissionError):
    """The user that this process logs in as may not do this."""


class TopicMismatchError(BusError):
    """A topic exists with other partitions or another cleanup policy than its records need."""


class RecordTooLargeError(BusError, ValueError):
    """A record is larger than its topic allows. Nothing was sent."""


class SendError(BusError):
    """A record was handed to the producer but is not known to be durable."""


class ProducerFencedError(BusError):
    """Another producer with the same transactional id has started; this one must stop and write nothing more."""


class RecordGoneError(BusError, LookupError):
    """No record is visible at a position: deleted by retention, compacted away, aborted, or never written."""
