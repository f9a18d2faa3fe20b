"""Rewards made of parts: each judges one thing of a response, and they are added, gated and bent into shape.

    ``weighted((1.0, numeric()), (0.2, matches(r"<answer>.*</answer>")), (-0.5, longer_than(400, by=200)))``

A part gives a number between 0 and 1. Whatever it raises is the failure of its run: a reward that cannot be found out
is never zero. What a response earns with something that it does not have, an answer that is no number say, is zero.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from trinity_bus.errors import TrinityError
from trinity_bus.rollout.rewards import extract_answer, parse_number, reference
from trinity_bus.rollout.workflows.single_turn import Reward
from trinity_bus.sandbox import Limits, Sandbox

_FENCED: Final = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
_PROGRAM: Final = "program.py"


class RewardError(TrinityError, ValueError):
    """A reward cannot be found out: its reference is not what it is to be compared with, say."""


def numeric(*, relative: float = 0.0, absolute: float = 0.0) -> Reward:
    """Judge the final number of a response: whether it is the reference's, within a tolerance.

    Args:
        relative: Of the reference.
        absolute: In units.

    Raises:
        RewardError: When a reference is no number.
    """

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        del ended
        wanted = parse_number(reference(answer))
        if wanted is None:
            raise RewardError(f"the reference {answer[:100]!r} is no number")
        said = extract_answer(response)
        given = None if said is None else parse_number(said)
        tolerance = max(Fraction(relative) * abs(wanted), Fraction(absolute))
        return float(given is not None and abs(given - wanted) <= tolerance)

    return judge


def matches(pattern: str, *, whole: bool = False) -> Reward:
    """Judge the format of a response: whether a regular expression is found in it.

    Args:
        pattern: ``.`` is any character, a new line too.
        whole: Whether it is to be all of the response.
    """
    compiled = re.compile(pattern, re.DOTALL)

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        del answer, ended
        return float((compiled.fullmatch(response) if whole else compiled.search(response)) is not None)

    return judge


def longer_than(words: int, *, by: int = 1) -> Reward:
    """Judge the length of a response: 0 up to so many words, rising to 1 at ``by`` words more.

    Give it a negative weight. A response that a limit has cut is 1.
    """

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        del answer
        return min(max((len(response.split()) - words) / by, 0.0), 1.0) if ended else 1.0

    return judge


def valid_json(schema: Mapping[str, Any]) -> Reward:
    """Judge whether a response, or the last fenced block of it, is JSON of a schema.

    Raises:
        RewardError: At once, when it is no schema.
    """
    import jsonschema

    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise RewardError(f"this is no JSON schema: {error.message}") from error
    validator = kind(schema)

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        del answer, ended
        try:
            return float(validator.is_valid(json.loads(last_block(response))))
        except (ValueError, RecursionError):
            return 0.0

    return judge


def passes_tests(python: str = "python3", *, limits: Limits | None = None) -> Reward:
    """Judge code: the last fenced block of a response, run in a sandbox with the task's answer, tests, after it.

    Args:
        python: The interpreter.
        limits: Of the run.

    Raises:
        SandboxError: When this machine gives no sandbox.
        RewardError: When there is no such interpreter.
    """

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        del ended
        async with Sandbox(limits) as box:
            # A program that ends itself before its tests has not passed them, and cannot say so by chance.
            passed = secrets.token_hex(16)
            await box.write_file(_PROGRAM, f"{last_block(response)}\n\n{answer}\nprint({passed!r})\n")
            done = await box.exec([python, _PROGRAM])
        if done.returncode == 127:
            raise RewardError(f"{python!r} cannot be run in a sandbox: {done.stderr.strip()}")
        return float(done.returncode == 0 and done.stdout.rstrip().endswith(passed))

    return judge


def weighted(*parts: tuple[float, Reward]) -> Reward:
    """Add parts up, each with its weight; they are judged at once."""

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        values = await asyncio.gather(*(part(response, answer, ended=ended) for _, part in parts))
        return sum(weight * value for (weight, _), value in zip(parts, values, strict=True))

    return judge


def gated(gate: Reward, then: Reward, *, otherwise: float = 0.0) -> Reward:
    """Judge by ``then`` where ``gate`` gives 1, which is judged first; else the reward is ``otherwise``."""

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        if await gate(response, answer, ended=ended) < 1.0:
            return otherwise
        return await then(response, answer, ended=ended)

    return judge


def shaped(reward: Reward, shape: Callable[[float], float]) -> Reward:
    """Bend a reward into shape, such as ``shaped(reward, lambda value: value**2)``."""

    async def judge(response: str, answer: str, *, ended: bool) -> float:
        return shape(await reward(response, answer, ended=ended))

    return judge


def last_block(response: str) -> str:
    """Return the last fenced block of a response; all of it, where there is none."""
    blocks = _FENCED.findall(response)
    return str(blocks[-1]) if blocks else response
