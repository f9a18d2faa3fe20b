"""What the index can be asked, how much at once, and what goes wrong with it: each error is one line for people."""

from typing import Final, Literal

from msgspec import Struct

from schemas.errors import TrinityError, shown
from schemas.record import MAX_COUNT


class QuestionError(TrinityError, ValueError):
    """The index cannot be asked this."""


class StoreBusyError(TrinityError, RuntimeError):
    """Another process writes the store."""


class StoreError(TrinityError, RuntimeError):
    """The store cannot be read or written: the disk is full, or its files are damaged."""


class UnreadableError(TrinityError, ValueError):
    """What lies at a place of the log is not what it is taken for."""


MAX_LIMIT: Final = 500  # Rows of one page
MAX_TEXT_CHARS: Final = 200
MAX_HISTOGRAM_SAMPLES: Final = 50_000

type Axis = Literal["step", "time"]


class PageAsk(Struct, frozen=True):
    limit: int = 50
    after: str | None = None  # What the page before says; None: the first

    @property
    def rows(self) -> int:
        if not 1 <= self.limit <= MAX_LIMIT:
            raise QuestionError(f"limit = {self.limit}: a page has 1 to {MAX_LIMIT} rows")
        return self.limit

    @property
    def before(self) -> int | None:
        """The number that all rows of the page are below; None: any."""
        if self.after is None:
            return None
        number = int(self.after) if self.after.isascii() and self.after.isdigit() and len(self.after) < 20 else -1
        if not 0 <= number <= MAX_COUNT:
            raise QuestionError(f"after = {shown(self.after)} is nothing that a page said")
        return number


class SampleFilter(Struct, frozen=True):
    """Which samples. What is None restricts nothing."""

    task_id: str | None = None
    batch_id: str | None = None
    step: int | None = None  # Begun with their group,
    trainer: str | None = None  # by this trainer; None: by the live one that spoke last
    # All of its words, in any order, in the response, or all of them in the prompt. ``"in quotes"``: one behind the
    # other. Needs a tokenizer.
    text: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    version_min: int | None = None  # Some token was drawn by this version or a newer one,
    version_max: int | None = None  # and some by this one or an older one
    teaches_nothing: bool | None = None  # Whether all rewards of their group are the same


FIRST_PAGE: Final = PageAsk()
ALL_SAMPLES: Final = SampleFilter()
