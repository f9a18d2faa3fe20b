"""Whether who may write a topic may also say what a record on it says. Pure.

Brokers let a user write a topic or not, whatever is in the records, and tell no reader who wrote one. So a topic has
the authors that ``schemas.topics`` names, and a reader takes from it nothing but what they may say:

===================  ===================================================================================================
``forged_author``    a record type that only others may write, such as a trainer's step among the events of explorers
``forged_sender``    a record whose key is not the name that stands in it, or that speaks of a runner of another
===================  ===================================================================================================

Neither is proof against an author who lies about itself: all explorers are one user, unless brokers know them apart,
and one that writes another's name into key and record is believed. See ``docs/security.md``.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from schemas.codec import RECORDS, decode
from schemas.errors import DecodeError
from schemas.event import RunnersReport
from schemas.topic import Topic
from schemas.topics import TOPICS

FORGED_AUTHOR = "forged_author"
FORGED_SENDER = "forged_sender"
_FOREIGN = "unexpected_schema"  # what the codec says of a record of a type that is not welcome


@lru_cache
def own(topic: Topic, expect: tuple[type, ...]) -> tuple[type, ...]:
    """Those of the expected types that may stand on the topic."""
    return tuple(cls for cls in expect if cls in topic.records)


def decode_own(topic: Topic, key: bytes | None, value: bytes, expect: tuple[type, ...]) -> Any:
    """Return the record in ``value``, if it is one of the expected types and its author may say it.

    A reader that expects all that may stand on the topic is told what is forged; to others it is merely unexpected.
    DecodeError: it is nothing of the kind.
    """
    types = own(topic, expect)
    if not types:
        raise DecodeError(_FOREIGN, f"nothing that {topic.name} carries is expected here")
    try:
        return _of_its_sender(topic, key, decode(value, *types))
    except DecodeError as error:
        if error.reason == _FOREIGN and len(types) == len(topic.records):
            _refuse_forged(topic, value)
        raise


def _of_its_sender[R](topic: Topic, key: bytes | None, record: R) -> R:
    if topic.sender is None:
        return record
    name = getattr(record, topic.sender)
    if key != name.encode():
        text = None if key is None else key[:200].decode("utf-8", "backslashreplace")
        raise DecodeError(FORGED_SENDER, f"the key is {text!r}, but the record is said to be of {name!r}")
    if isinstance(record, RunnersReport):
        for runner in record.runners:
            if not runner.runner.startswith(f"{name}/"):
                raise DecodeError(FORGED_SENDER, f"{name!r} tells of {runner.runner!r}, which is no runner of it")
    return record


def _refuse_forged(topic: Topic, value: bytes) -> None:
    # Raise for a record that not everybody who may write the topic may say.
    cls = _type_of(value)
    if cls is None:
        return
    writers: set[str] = {writer for other in TOPICS if cls in other.records for writer in other.writers}
    if not writers.issuperset(topic.writers):
        raise DecodeError(
            FORGED_AUTHOR,
            f"{cls.__name__} on {topic.name}, the {_names(topic.writers)}'s topic: only {_names(writers)} may say it",
        )


def _type_of(value: bytes) -> type | None:
    try:
        return type(decode(value, *RECORDS))
    except DecodeError:
        return None


def _names(writers: Iterable[str]) -> str:
    return " and ".join(sorted(writers)) or "nobody"
