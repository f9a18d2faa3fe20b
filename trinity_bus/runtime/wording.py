"""Numbers of things in lines for people, in the right number."""


def counted(count: int, noun: str) -> str:
    """Return how many there are of something.

    >>> counted(1, "line"), counted(0, "line"), counted(2500, "batch")
    ('1 line', '0 lines', '2,500 batches')
    """
    plural = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{count:,} {by_number(count, noun, plural)}"


def by_number(count: int, one: str, others: str) -> str:
    """Return what is said of one, or of another number."""
    return one if count == 1 else others
