"""What can go wrong between a record and its bytes, and how values and numbers are written in lines for people."""

import reprlib


def counted(count: int, noun: str) -> str:
    """Return how many there are of something, such as ``2,500 batches``."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{count:,} {by_number(count, noun, plural)}"


def by_number(count: int, one: str, others: str) -> str:
    """Return what is said of one, or of another number."""
    return one if count == 1 else others


MAX_DETAIL_CHARS = 400  # a detail travels in a Kafka header and in log lines, so it stays short whatever it quotes

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlevel = 2


def shown(value: object) -> str:
    """``value`` as Python source, cut to a readable length; safe for values of any size and depth."""
    return _repr.repr(value)


def printable(text: str) -> str:
    """``text`` with everything escaped that could end a line, steer a terminal, or turn the order of what is read."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def encodable(text: str) -> str:
    """``text`` with each half of a character escaped, which no UTF-8 can hold."""
    return text.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """``text`` as :func:`printable` gives it, of at most ``MAX_DETAIL_CHARS`` characters."""
    return printable(text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 3] + "...")


class TrinityError(Exception):
    """Base of all errors of the project; see ``trinity_bus.errors``."""


class SchemaError(TrinityError, ValueError):
    """Base of everything that this package raises on purpose."""


class RecordError(SchemaError):
    """A program makes a record that there cannot be: a field does not exist, is missing, or has a wrong value."""


class EncodeError(SchemaError):
    """A record cannot be written: it breaks a limit or a rule that its readers enforce."""


class DecodeError(SchemaError):
    """Bytes that are not one of the expected records.

    ``reason`` is a word of a fixed set, see ``docs/schemas.md``; ``detail`` one line that names the field and the
    value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = one_line(detail)
        super().__init__(f"{reason}: {self.detail}")


def parser_reason(error: Exception) -> str:
    # Of what a parser raises where the bytes are no msgpack at all.
    match error:
        case UnicodeDecodeError():
            return "bad_text"
        case RecursionError():
            return "too_deep"
        case _ if "truncated" in str(error):
            return "truncated"
        case _:
            return "trailing_bytes" if "trailing" in str(error) else "not_msgpack_or_json"


class UnsupportedVersion(DecodeError):  # noqa: N818 - named for the condition, as a reader would ask for it
    """A record of a known schema in a major version that this reader does not know."""

    def __init__(self, schema: str, version: int, known: int) -> None:
        super().__init__("unsupported_version", f"{schema}: schema_version = {version}, this reader knows {known}")
