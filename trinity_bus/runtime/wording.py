"""Numbers of things in lines for people, in the right number."""


def counted(count: int, noun: str) -> str:
    """Return how many there are of something, such as ``2,500 batches``."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{count:,} {by_number(count, noun, plural)}"


def by_number(count: int, one: str, others: str) -> str:
    """Return what is said of one, or of another number."""
    return one if count == 1 else others
