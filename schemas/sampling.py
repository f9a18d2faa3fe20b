"""How tokens are drawn: vLLM's per-request options, by its names.

Whatever is absent takes the explorer's default. What a model is trained on with an honest ratio was drawn from its own
distribution, flattened or cut by ``temperature``, ``top_p``, ``top_k`` and ``min_p``: these the trainer can repeat.
Options that change the distribution in other ways are told by ``Sampling.altered_by``.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from schemas.record import PlainMap, Record

MAX_STOPS = 1024
MAX_STOP_TOKENS = 128
MAX_WORDS = 1024  # bad words, choices, tokens that alone are allowed, and tokens with a bias: as many as vLLM takes
MAX_WORD_CHARS = 4096
MAX_GRAMMAR_CHARS = 1 << 16
MAX_VOCABULARY = 2**31 - 1
MAX_NEW_TOKENS = 1 << 20
MAX_TEMPERATURE = 10
MIN_TEMPERATURE = 0.01  # vLLM's, of what is drawn at random

type TokenId = Annotated[int, Field(ge=0, le=MAX_VOCABULARY)]
# a token id as the key of a map, which is text in JSON and here
type TokenName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
type Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD_CHARS)]
type _Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
type _Grammar = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]


def _as_drawn(temperature: float) -> float:
    # vLLM draws at none that is lower, and what is told is what is trained with.
    return max(temperature, MIN_TEMPERATURE) if temperature > 0 else temperature


class StructuredOutputs(Record):
    """What a response must look like: one of these."""

    SCHEMA: ClassVar[str] = "structured_outputs"

    json_schema: PlainMap | None = None
    """vLLM's ``json``."""
    json_object: Literal[True] | None = None
    """Any JSON object."""
    regex: _Grammar | None = None
    choice: Annotated[list[Word], Field(min_length=1, max_length=MAX_WORDS)] | None = None
    grammar: _Grammar | None = None
    """In the engine's own notation, EBNF for most."""
    structural_tag: _Grammar | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "StructuredOutputs":
        named = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"structured outputs have one constraint, not {len(named)}: {', '.join(named) or 'none'}")
        return self


class Sampling(Record):
    """How tokens are drawn. An absent field takes the explorer's default."""

    SCHEMA: ClassVar[str] = "sampling"

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_as_drawn)] | None = None
    """0: the likeliest tokens. What is between 0 and 0.01 becomes 0.01, as in vLLM."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_VOCABULARY)] | None = None
    """Only so many of the likeliest tokens; -1 and 0: all."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only tokens that are at least so likely, as a share of the likeliest one's probability."""
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    bad_words: Annotated[list[Word], Field(max_length=MAX_WORDS)] | None = None
    logit_bias: (
        Annotated[dict[TokenName, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_WORDS)] | None
    ) = None
    """Added to the logits of tokens, by their ids."""
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_WORDS)] | None = None
    """No others are drawn."""
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: bool | None = None
    """Whether stop strings are looked for in a text without special tokens."""
    thinking_token_budget: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    """After so many tokens of reasoning its end is forced."""

    @property
    def softmax(self) -> tuple[float | None, float, int, float]:
        """From which softmax tokens are drawn, where nothing alters it; lengths, stops, seeds and no limits do not."""
        return self.temperature, 1.0 if self.top_p is None else self.top_p, max(self.top_k or 0, 0), self.min_p or 0.0

    @property
    def altered_by(self) -> tuple[str, ...]:
        """Options that make the distribution that tokens are drawn from another one than the trainer can repeat."""
        given = self.__dict__
        return tuple([name for name, none in ALTERING.items() if given[name] is not None and given[name] != none])


# Options that no trainer can repeat, and the value with which each alters nothing.
ALTERING = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "bad_words": [],
    "logit_bias": {},
    "allowed_token_ids": None,
    "structured_outputs": None,
    "thinking_token_budget": None,
}
