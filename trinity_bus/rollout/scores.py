"""Rewards made of parts: each judges one thing of a response, and they are added, gated and bent into shape.

    ``weighted((1.0, numeric()), (0.2, matches(r"<answer>.*</answer>")), (-0.5, longer_than(400, by=200)))``

A part gives a number between 0 and 1, which is also told in ``Answered.metrics``: as ``reward/numeric`` say, the second
part of that kind as ``reward/numeric_2``, whether or not the first was judged. Whatever it raises is the failure of its
run: a reward that cannot be found out is never zero. What a response earns with something that it does not have, an
answer that is no number say, is zero.
"""

import asyncio
import itertools
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from fractions import Fraction
from string import Template
from typing import Any, Final

from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.rewards import extract_answer, math_reward, parse_number, reference
from trinity_bus.rollout.workflows import Answered, Reward
from trinity_bus.sandbox import Sandbox, SandboxLimits

_FENCED: Final = re.compile(
    r"(`{3,}|~{3,})[ \t]*(?:\{?\.?([\w+#.-]*)[^`\n]*)\n(.*?)"
    r"(?:\n[ \t]*\1[`~]*[ \t]*(?=\n|\Z)|(?<=[^`~])\1[ \t]*(?=\n|\Z)|\Z)",
    re.DOTALL,
)
_DEFINES: Final = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]", re.MULTILINE)
_PYTHON: Final = frozenset({"python", "python3", "py", "py3"})
_PROGRAM: Final = "program.py"
_SCORE: Final = re.compile(r"[Ss]core:\s*+\**+\s*+(-?\d+(?:\.\d+)?)")
_MAX_JUDGEMENT: Final = 1 << 20


class RewardError(TrinityError, ValueError):
    """A reward cannot be found out: its reference is not what it is to be compared with, say."""


def exact() -> Reward:
    """Judge whether a response is the reference, without regard to blanks around them."""

    async def judge(said: Answered) -> float:
        return float(said.text.strip() == said.answer.strip())

    return judge


def mathematics() -> Reward:
    """Judge the final answer of a response as the workflow ``math`` does: numbers, formulas, or words."""

    async def judge(said: Answered) -> float:
        return await math_reward(said.text, said.answer, CHECKER.same)

    return judge


def numeric(*, relative: float = 0.0, absolute: float = 0.0) -> Reward:
    """Judge the final number of a response, within a tolerance; RewardError where the reference is no number."""

    async def judge(said: Answered) -> float:
        wanted = parse_number(reference(said.answer))
        if wanted is None:
            raise RewardError(f"the reference {said.answer[:100]!r} is no number")
        found = extract_answer(said.text)
        given = None if found is None else parse_number(found)
        tolerance = max(Fraction(relative) * abs(wanted), Fraction(absolute))
        return float(given is not None and abs(given - wanted) <= tolerance)

    return judge


def matches(pattern: str, *, whole: bool = False) -> Reward:
    """Judge whether a regular expression is found in a response, or is ``whole`` of it; ``.`` is any character."""
    compiled = re.compile(pattern, re.DOTALL)

    async def judge(said: Answered) -> float:
        return float((compiled.fullmatch(said.text) if whole else compiled.search(said.text)) is not None)

    return judge


def longer_than(words: int, *, by: int = 1) -> Reward:
    """Judge the length of a response: 0 up to so many words, rising to 1 at ``by`` words more.

    Give it a negative weight. A response that a limit has cut is 1.
    """

    async def judge(said: Answered) -> float:
        return min(max((len(said.text.split()) - words) / by, 0.0), 1.0) if said.ended else 1.0

    return judge


def valid_json(schema: Mapping[str, Any]) -> Reward:
    """Judge whether a response, or the last block of it that is fenced as JSON or as nothing, is JSON of a schema.

    RewardError, at once: it is no schema.
    """
    import jsonschema

    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise RewardError(f"this is no JSON schema: {error.message}") from error
    validator = kind(schema)

    async def judge(said: Answered) -> float:
        for text in (said.text, last_block(said.text, {"json"})):
            try:
                return float(validator.is_valid(json.loads(text, parse_constant=_refuse)))
            except (ValueError, RecursionError):
                continue
        return 0.0

    return judge


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def passes_tests(python: str = "python3", *, limits: SandboxLimits | None = None) -> Reward:
    """Judge code: the last fenced block of a response that defines something, run with the task's answer, tests, after.

    It runs in a sandbox; SandboxError where this machine gives none, RewardError where there is no such interpreter.
    """

    async def judge(said: Answered) -> float:
        async with Sandbox(limits) as box:
            # A program that ends itself before its tests has not passed them, and cannot say so by chance.
            passed = secrets.token_hex(16)
            await box.write_file(_PROGRAM, f"{last_block(said.text)}\n\n{said.answer}\nprint({passed!r})\n")
            done = await box.exec([python, _PROGRAM])
        if done.returncode == 127:
            raise RewardError(f"{python!r} cannot be run in a sandbox: {done.stderr.strip()}")
        return float(done.returncode == 0 and done.stdout.rstrip().endswith(passed))

    return judge


def judged(
    instructions: str,
    *,
    pool: str | None = None,
    model: str = "",
    sampling: Sampling | None = None,
    worst: float = 0.0,
    best: float = 10.0,
    url: str = "JUDGE_URL",
    key: str = "JUDGE_KEY",
    timeout_s: float = 120.0,
) -> Reward:
    """Have another model judge: that of a pool of this mesh, or any with OpenAI's API.

    What it says last after ``Score:`` is the score; ``worst`` gives 0 and ``best`` gives 1.

    Args:
        instructions: What it is told, with ``${question}``, ``${response}`` and ``${answer}``; ValueError: with others.
        pool: One of ``explorer.auxiliary_pools``: its explorers are asked. None: a server, at ``url``.
        model: As the server calls it.
        sampling: How a pool's model draws; an absent field takes the default of its explorers.
        url: The variable of the environment with the server's address, up to ``/v1``; ``key`` that with its key.
        timeout_s: Of one judgement.

    Raises:
        TrinityError: When nobody can be asked, does not answer in time, or answers without such a score (RewardError).
    """
    template = Template(instructions)
    if not template.is_valid() or not {*template.get_identifiers()} <= {"question", "response", "answer"}:
        raise ValueError("instructions may have ${question}, ${response} and ${answer}; a dollar sign is $$")
    if (pool is None) == (not model):
        raise ValueError("a judge is a pool of this mesh, or a model of a server: one of the two")

    async def judge(said: Answered) -> float:
        asked = template.substitute(question=said.question, response=said.text, answer=said.answer)
        messages = [{"role": "user", "content": asked}]
        try:
            async with awake.timeout(timeout_s):
                if pool is None:
                    text = await _said_by_server(messages, model, url, key)
                elif said.ctx is None:
                    raise RewardError(f"pool {pool!r} cannot be asked: Answered.ctx is not set")
                else:
                    text = await said.ctx.chat(messages, pool=pool, sampling=sampling)
        except TimeoutError as error:
            raise RewardError(f"the judge does not answer: {type(error).__name__}: {error}") from error
        scores = _SCORE.findall(text)
        value = float(scores[-1]) if scores else None
        if value is None or not worst <= value <= best:
            raise RewardError(f"the judge gave no score from {worst:g} to {best:g}: {text[-200:]!r}")
        return (value - worst) / (best - worst)

    return judge


async def _said_by_server(messages: list[dict[str, str]], model: str, url: str, key: str) -> str:
    import aiohttp

    if url not in os.environ:
        raise RewardError(f"nobody can be asked to judge: {url} is not set; see explorer.runner_environment")
    headers = {"Authorization": f"Bearer {os.environ.get(key, '')}"}
    address = f"{os.environ[url].rstrip('/')}/chat/completions"
    raw = bytearray()
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), headers=headers) as session,
            session.post(address, json={"model": model, "messages": messages}, allow_redirects=False) as answer,
        ):
            async for piece in answer.content.iter_any():
                raw += piece
                if len(raw) > _MAX_JUDGEMENT:
                    break
    except aiohttp.ClientError as error:
        raise RewardError(f"the judge does not answer: {type(error).__name__}: {error}") from error
    if answer.status != 200 or len(raw) > _MAX_JUDGEMENT:
        raise RewardError(f"the judge refuses: {answer.status}: {raw[:200].decode(errors='replace')}")
    try:
        return str(json.loads(raw)["choices"][0]["message"]["content"])
    except (ValueError, LookupError, TypeError) as error:
        raise RewardError(f"the judge's answer cannot be read: {error!r}") from error


def weighted(*parts: tuple[float, Reward]) -> Reward:
    """Add parts up, each with its weight; they are judged at once."""

    async def add(ask: _Ask) -> float:
        values = await asyncio.gather(*(ask(at) for at in range(len(parts))))
        return sum(weight * value for (weight, _), value in zip(parts, values, strict=True))

    return _Composed("weighted", [part for _, part in parts], add)


def gated(gate: Reward, then: Reward, *, otherwise: float = 0.0) -> Reward:
    """Judge by ``then`` where ``gate`` gives 1, which is judged first; else the reward is ``otherwise``."""

    async def choose(ask: _Ask) -> float:
        return otherwise if await ask(0) < 1.0 else await ask(1)

    return _Composed("gated", [gate, then], choose)


def shaped(reward: Reward, shape: Callable[[float], float]) -> Reward:
    """Bend a reward into shape, such as ``shaped(reward, lambda value: value**2)``."""

    async def bend(ask: _Ask) -> float:
        return shape(await ask(0))

    return _Composed("shaped", [reward], bend)


type _Ask = Callable[[int], Awaitable[float]]  # judges by one of the parts, and tells what it gave


# The name of each part of a reward, the how manieth of that name it is, and the same of its own parts.
type _Named = list[tuple[str, int, _Named]]


class _Composed:
    """A reward made of parts. A part is told by its place, whichever is judged first, or not at all."""

    def __init__(self, kind: str, parts: Sequence[Reward], combine: Callable[[_Ask], Awaitable[float]]) -> None:
        self.kind = kind
        self._parts = parts
        self._combine = combine

    async def __call__(self, said: Answered) -> float:
        return await self.judge(said, self.named(Counter()))

    def named(self, counts: Counter[str]) -> _Named:
        """Return the names of its parts; those of a part come before it."""
        found: _Named = []
        for part in self._parts:
            below = part.named(counts) if isinstance(part, _Composed) else []
            name = _name_of(part)
            counts[name] += 1
            found.append((name, counts[name], below))
        return found

    async def judge(self, said: Answered, named: _Named) -> float:
        async def ask(at: int) -> float:
            part, (name, number, below) = self._parts[at], named[at]
            value = await (part.judge(said, below) if isinstance(part, _Composed) else part(said))
            told = (f"reward/{name}" if n == 1 else f"reward/{name}_{n}" for n in itertools.count(number))
            said.metrics[next(one for one in told if one not in said.metrics)] = value
            return value

        return await self._combine(ask)


def _name_of(part: Reward) -> str:
    if isinstance(part, _Composed):
        return part.kind
    return str(getattr(part, "__qualname__", type(part).__name__)).partition(".")[0]


def last_block(response: str, languages: Collection[str] = _PYTHON) -> str:
    """Return the last fenced block of a response that is in one of some languages; all of it, where there is no block.

    Without such a block it is the last one that names no language, or else the last. Of blocks of code it is the last
    that defines a function or a class, if one does: what stands behind it is an example of its use. A block that is not
    closed ends with the response.
    """
    blocks = [(language.lower(), text) for _, language, text in _FENCED.findall(response.replace("\r\n", "\n"))]
    named = [text for language, text in blocks if language in languages]
    fitting = named or [text for language, text in blocks if not language] or [text for _, text in blocks]
    defining = [text for text in fitting if languages is _PYTHON and _DEFINES.search(text)]
    return str((defining or fitting or [response])[-1])
