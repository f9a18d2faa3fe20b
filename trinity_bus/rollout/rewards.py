r"""Reward functions: text in, a number between 0 and 1 out. Pure, and safe on whatever a model may write.

Answers are found in the order in which people mark them: the last ``\boxed{...}``, else what stands after the last
``####``, else the last number after the last ``=``, else the last number anywhere.
"""

import re
from collections.abc import Awaitable, Callable
from fractions import Fraction

type Equivalence = Callable[[str, str], Awaitable[bool]]
"""Whether two answers, that given and that wanted, mean the same."""

MAX_NUMBER_CHARS = 64
"""Longer ones are compared as text: nobody means them, and exact arithmetic on them would cost time."""

_END = "\n"
"""Stands for the end of a sequence; no word that ``split`` gives can be equal to it."""

_NUMBER = re.compile(r"(?:(?<![\w.)])[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|\.\d+)")
_BOXED = re.compile(r"\\f?boxed\s*\{")
_FRAC = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_MATHEMATICS = re.compile(r"[\\^_=<>()\[\]{}+*/-]")
"""What is in formulas, and not in words."""
_CLUTTER = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\text\{([^{}]*)\}|[$\s]")


def extract_answer(text: str) -> str | None:
    """Return the final answer in a response, as it was written; None when there is none."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    _, marked, tail = text.rpartition("####")
    if marked:
        return tail.strip().splitlines()[0].strip() if tail.strip() else None
    _, equals, tail = text.rpartition("=")
    after = _last_number(tail) if equals else None
    return _last_number(text) if after is None else after


def parse_number(text: str) -> Fraction | None:
    r"""Return an integer, decimal, fraction or ``\frac{a}{b}`` as an exact number; None when ``text`` is anything else.

    Thousands may be separated by commas; a leading ``$``, a trailing full stop, and blanks are passed over.
    """
    plain = _FRAC.sub(r"\1/\2", text[: MAX_NUMBER_CHARS + 1])
    plain = _CLUTTER.sub(r"\1", plain).removesuffix(".")
    if len(plain) > MAX_NUMBER_CHARS or not _NUMBER.fullmatch(plain):
        return None
    numerator, _, denominator = plain.replace(",", "").partition("/")
    if denominator and int(denominator) == 0:
        return None
    value = Fraction(numerator)
    return value / int(denominator) if denominator else value


def same_answer(given: str, wanted: str) -> bool:
    """Whether two answers are equal: as exact numbers where both are numbers, else as text without clutter."""
    # What is the same text is the same number: most need no arithmetic.
    if _CLUTTER.sub(r"\1", given).casefold() == _CLUTTER.sub(r"\1", wanted).casefold():
        return True
    right = parse_number(wanted)
    return right is not None and right == parse_number(given)


def reference(answer: str) -> str:
    """Return the end of a worked reference, or the reference as it is."""
    marked = "boxed" in answer or "####" in answer
    return (extract_answer(answer) if marked else None) or answer


async def math_reward(response: str, answer: str, is_equivalent: Equivalence) -> float:
    """1.0 when the response's final answer equals the reference (or the end of a worked reference), else 0.0.

    Args:
        response: What the model wrote.
        answer: The reference.
        is_equivalent: Asked where they are not the same, and a formula is wanted.
    """
    given, wanted = extract_answer(response), reference(answer)
    if given is None:
        return 0.0
    if same_answer(given, wanted):
        return 1.0
    # Where a number is wanted nothing is worked out: the question itself, 48 + 24, would be an answer to it.
    if parse_number(wanted) is not None or not _MATHEMATICS.search(wanted):
        return 0.0
    return 1.0 if await is_equivalent(given, wanted) else 0.0


def sequence_reward(response: str, answer: str, *, ended: bool) -> float:
    """Share of words that stand where they should, the end of the answer counted as one of them.

    Words are split at blanks. The share is of the longer of the two sequences, so that neither filling up nor stopping
    early pays, and 1.0 is the answer exactly: no word missing, none too many, and ended by the model itself.

    Args:
        response: What the model wrote, without special tokens.
        answer: What it should have written.
        ended: Whether it ended the response itself; False where a limit cut it.
    """
    given, wanted = [*response.split(), *([_END] if ended else [])], [*answer.split(), _END]
    hits = sum(a == b for a, b in zip(given, wanted, strict=False))
    return hits / max(len(given), len(wanted))


def _last_number(text: str) -> str | None:
    """Return the last number in a text. None has a blank in it, so words are looked at from the end."""
    return next((str(found[-1]) for word in reversed(text.split()) if (found := _NUMBER.findall(word))), None)


def _last_boxed(text: str) -> str | None:
    r"""Inside of the last ``\boxed{...}`` with its braces balanced; None when there is none or it is not closed."""
    starts = list(_BOXED.finditer(text))
    if not starts:
        return None
    start = starts[-1].end()
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
    return None
