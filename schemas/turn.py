"""Turns: what an attempt has completed of a conversation, so that another attempt need not do it again.

::

    a run:  turn 0 --> turn 1 --> turn 2 ...        a record each, once a call has returned, or the workflow says that
               |                                    the turn is over: so a turn of two calls is two records
               '-- what the engine drew, and what tools and other calls returned, since the record before

    its explorer is killed in turn 3 --> the next attempt at the run is given turns 0 to 2, and goes on from there

A workflow is run again from its beginning; what it asks the engine, and what it calls, is answered from its turns as
long as they have an answer to the very same question. So what is kept is questions, as digests, and answers. Sampled
token ids are kept as they were drawn.

Keyed by task, because whoever goes on with one looks for its turns alone. Tasks of a single turn write none. A turn
names the attempt that has written the one before it (``after``): two attempts at a run may have gone on from the same
turn, and each chain is whole by itself. Nothing counts that stands here: what counts is an attempt's result.

A response that takes long is written while it is drawn, as records with more and more of its tokens
(``PartialResponses``); ``trinity_bus.runners.partials`` says what becomes of them.

Deleted are turns that are older than the topic keeps them, unless a task that is open may still need them.
"""

import hashlib
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from schemas.groups.kept import MAX_KEPT_BYTES, decode_kept
from schemas.record import MAX_ID_LENGTH, MAX_VERSION, Count, Identifier, Positive, Record
from schemas.task import MAX_REPEAT_TIMES

MAX_ANSWERS = 1024  # of one turn
MAX_TURNS = 65_536  # of one run
MAX_RESPONSES = 1024  # of one request to the engine
MAX_RESULT_CHARS = 1 << 20

type Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
type _Span = Annotated[list[Annotated[int, Field(ge=-1, le=MAX_VERSION)]], Field(min_length=2, max_length=2)]


class DrawnResponse(Record):
    """One response of the engine."""

    SCHEMA: ClassVar[str] = "drawn_response"

    token_ids: bytes
    """int32, little-endian."""
    logprobs: bytes
    """float32, little-endian: of each token, under the policy that drew it."""
    finish_reason: Annotated[str, Field(max_length=64)]
    versions: list[_Span] = Field(default_factory=list)
    """Of each span the first token, and the model version that drew from there on."""
    kept: Annotated[bytes, Field(max_length=MAX_KEPT_BYTES)] | None = None
    """From which tokens each was drawn, where top-p, top-k or min-p limited it, as in the column ``kept`` of an
    experience."""

    @model_validator(mode="after")
    def _is_of_whole_numbers(self) -> "DrawnResponse":
        if len(self.token_ids) % 4 or len(self.token_ids) != len(self.logprobs):
            raise ValueError("token_ids and logprobs are as many numbers of four bytes")
        if self.kept is not None:
            decode_kept(self.kept, len(self.token_ids) // 4)
        return self


class Answer(Record):
    """What was answered to one question: responses of the engine, or the result of a call."""

    SCHEMA: ClassVar[str] = "answer"

    question: Digest
    """Of the prompt's tokens and how they were to be continued; or of the call's name and arguments."""
    responses: Annotated[list[DrawnResponse], Field(max_length=MAX_RESPONSES)] | None = None
    result: Annotated[str, Field(max_length=MAX_RESULT_CHARS)] | None = None
    """As JSON."""
    number: Count | None = None
    """Of a part of a response: which of its attempt's it is. Absent: of a whole answer."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "Answer":
        if (self.responses is None) == (self.result is None):
            raise ValueError("an answer has responses or a result")
        return self


class Turn(Record):
    """One completed turn of a run. Produced by explorers to ``turns``, keyed by ``task_id``."""

    SCHEMA: ClassVar[str] = "turn"
    MAX_BYTES: ClassVar[int] = 4 << 20

    task_id: Identifier
    attempt: Positive
    run_id: Annotated[int, Field(ge=0, lt=MAX_REPEAT_TIMES)]
    number: Annotated[int, Field(ge=0, lt=MAX_TURNS)]
    """0 is the first of the run."""
    after: Count = 0
    """The attempt that has written the turn before; 0 for the first."""
    workflow: Identifier
    explorer: Identifier
    incarnation: Identifier
    answers: Annotated[list[Answer], Field(max_length=MAX_ANSWERS)]
    answer_id: Annotated[str, Field(max_length=MAX_ID_LENGTH)] | None = None
    """By which a gateway's client knows what it was answered. Absent: of a run, which has no client."""
    prompt: bytes | None = None
    """int32, little-endian: what was asked with, of a gateway's request that is a conversation by itself, so that
    another gateway can make an experience of it. Absent: of a conversation, whose turns are found by its questions."""

    @model_validator(mode="after")
    def _has_a_prompt_of_whole_numbers(self) -> "Turn":
        if len(self.prompt or b"") % 4:
            raise ValueError("prompt is numbers of four bytes")
        return self


class PartialResponses(Record):
    """More tokens of responses of an attempt. Produced by explorers to ``turns``, keyed by ``task_id``."""

    SCHEMA: ClassVar[str] = "partial_responses"
    MAX_BYTES: ClassVar[int] = 4 << 20

    task_id: Identifier
    attempt: Positive
    run_id_base: Annotated[int, Field(ge=0, lt=MAX_REPEAT_TIMES)]
    """The first of the runs that the attempt does. Of which of them a response is, nobody says."""
    repeat_times: Annotated[int, Field(ge=1, le=MAX_REPEAT_TIMES)]
    workflow: Identifier
    explorer: Identifier
    incarnation: Identifier
    answers: Annotated[list[Answer], Field(max_length=MAX_ANSWERS)]
    """The tokens of each response that stand behind those before: ``question_after`` these. Its spans of versions count
    from the first of these tokens; ``finish_reason`` is empty while it is drawn. One without number is passed over."""


def question_after(question: str, response: DrawnResponse, attempt: int, number: int) -> str:
    """Return the digest of a question that was answered as far as ``response`` goes.

    ``attempt``, ``number``: whose it is. Others may have drawn the very same tokens, and not be the same response.
    """
    asked = hashlib.blake2b(f"{question}/{attempt}/{number}".encode(), digest_size=16)
    asked.update(response.token_ids)
    asked.update(response.logprobs)
    return asked.hexdigest()


def chain(turns: list[Turn]) -> list[Turn]:
    """Return the turns of one run that the next attempt continues from: those that lead to the latest one, in order."""
    # Of all that were found, of whatever attempts: turns 0, 1, 2 ... without a gap; none where the first is missing.
    known = {(turn.number, turn.attempt): turn for turn in turns}
    dead_ends: set[tuple[int, int]] = set()
    # Of attempts that came equally far, the first is the one that has most likely gone on.
    for last in sorted(known, key=lambda key: (-key[0], key[1])):
        way = []
        at = last
        while at in known and at not in dead_ends:
            way.append(at)
            at = (at[0] - 1, known[at].after)
        if way and way[-1][0] == 0:
            return [known[key] for key in reversed(way)]
        dead_ends.update(way)
    return []
