"""Examples of the log as samples to train on, or why not. It imports no torch.

A demonstration becomes a sample, of whose tokens those of its answers are trained on; a preference becomes two that are
a pair: the chosen answer with an advantage of 1, the rejected one with -1. Nobody has drawn them, so they have no
log-probabilities. Each token of a demonstration weighs as much as the example says; the tokens of both answers of a
preference together, however long they are, weigh as much.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from schemas.examples import Demonstration, Preference
from schemas.groups.trainable import Bounds
from trinity_bus.chat import ChatError, ExampleWriter, Tokenizer, WrittenAnswer
from trinity_bus.errors import TrinityError
from trinity_bus.training.steps.packing import TrainSample


class ExampleFlaw(StrEnum):
    # It has no chat template, or that refuses the messages.
    UNWRITABLE = "example_unwritable"
    TOO_LONG = "example_too_long"
    BAD_TOKEN = "example_bad_token"  # noqa: S105 - a token of a language model


class ExampleError(TrinityError, ValueError):
    def __init__(self, flaw: ExampleFlaw, detail: str) -> None:
        super().__init__(detail)
        self.flaw = flaw


@dataclass(frozen=True, slots=True)
class ExampleReader:
    writer: ExampleWriter
    bounds: Bounds

    @classmethod
    def of(cls, tokenizer: Tokenizer, bounds: Bounds) -> "ExampleReader":
        return cls(ExampleWriter(tokenizer), bounds)

    def samples(self, example: Demonstration | Preference, *, pair: int = 0) -> list[TrainSample]:
        """``pair`` is what the two samples of a preference are known by among those of a step."""
        try:
            answers = self.writer.write(example)
        except ChatError as error:
            raise ExampleError(ExampleFlaw.UNWRITABLE, str(error)) from error
        for answer in answers:
            self._check(answer)
        if isinstance(example, Demonstration):
            (answer,) = answers
            return [_sample(answer, advantage=1.0, scale=example.weight, pair=None)]
        scale = example.weight / sum(sum(answer.mask) for answer in answers)
        return [
            _sample(answer, advantage=sign, scale=scale, pair=pair)
            for answer, sign in zip(answers, (1.0, -1.0), strict=True)
        ]

    def _check(self, answer: WrittenAnswer) -> None:
        tokens = [*answer.prompt, *answer.response]
        if len(tokens) > self.bounds.positions:
            raise ExampleError(
                ExampleFlaw.TOO_LONG, f"{len(tokens)} tokens; the model has {self.bounds.positions} positions"
            )
        foreign = next((token for token in tokens if not 0 <= token < self.bounds.vocabulary), None)
        if foreign is not None:
            raise ExampleError(
                ExampleFlaw.BAD_TOKEN,
                f"token {foreign}; the model has {self.bounds.vocabulary}: its tokenizer is another's",
            )


def _sample(answer: WrittenAnswer, *, advantage: float, scale: float, pair: int | None) -> TrainSample:
    undrawn = np.zeros(len(answer.response), np.float32)
    return TrainSample(
        tokens=np.array([*answer.prompt, *answer.response], np.int32),
        prompt_length=len(answer.prompt),
        mask=np.array(answer.mask, np.bool_),
        advantages=np.full(len(answer.response), advantage, np.float32),
        rollout_logprobs=undrawn,
        old_logprobs=undrawn,
        temperature=1.0,
        scale=scale,
        drawn=False,
        pair=pair,
    )
