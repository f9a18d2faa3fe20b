"""Hypothesis strategies for every record that travels by itself, made of the rules of its fields."""

import dataclasses
from collections.abc import Callable
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, TypeAliasType, Union, get_args, get_origin

import msgspec
import numpy as np
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from schemas import (
    Answer,
    Contribute,
    Demonstration,
    DrawnResponse,
    ExperienceGroup,
    Message,
    Position,
    Preference,
    Record,
    Rollout,
    Sample,
    Sampling,
    StructuredOutputs,
    Task,
    TokenFigures,
    Turn,
    build_group,
    codec,
)
from schemas.experience import MAX_SAMPLES
from schemas.fields.items import Item
from tests.support.fakes.experiences import kept_of

type Fields = dict[str, Any]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
identifiers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@#-]{0,20}", fullmatch=True)
counts = st.integers(0, 2**31 - 1)
positive = st.integers(1, 2**31 - 1)
metrics = st.dictionaries(text, st.floats(allow_nan=False), max_size=3)
batch_types: st.SearchStrategy[Literal["train", "eval"]] = st.sampled_from(["train", "eval"])
plain_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
OF_GROUP: Fields = {
    "task_id": "task-1",
    "attempt": 1,
    "batch_id": "batch-1",
    "batch_type": "train",
    "workflow": "math",
    "model": "policy",
    "explorer": "explorer-0",
    "incarnation": "life-1",
}
"""Whose a group is that is made by hand."""
PLAIN: dict[Any, st.SearchStrategy[Any]] = {bool: st.booleans(), bytes: st.binary(max_size=8), Any: plain_data}
LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "allow_inf_nan")


def limits_of(marks: Any) -> Fields:
    """Return the limits that pydantic's or msgspec's marks set."""
    found: Fields = {}
    for mark in marks:
        found |= limits_of(mark.metadata) if isinstance(mark, FieldInfo) else {}
        found |= {name: value for name in LIMITS if (value := getattr(mark, name, None)) is not None}
    return found


def values(annotation: Any, marks: Any = ()) -> st.SearchStrategy[Any]:
    """Return a strategy for what a field of this type may hold; of lists and texts only short ones."""
    if isinstance(annotation, TypeAliasType):
        return values(annotation.__value__, marks)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(inner[0], (*inner[1:], *marks))
    if origin in (Union, UnionType):
        return st.one_of([values(one, marks) for one in inner if one is not type(None)])
    limits = limits_of(marks)
    size = {"min_size": limits.get("min_length", 0), "max_size": min(limits.get("max_length", 3), 3)}
    if origin is list:
        return st.lists(values(inner[0]), **size)
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), **size)
    return st.sampled_from(inner) if origin is Literal else plain_values(annotation, limits)


def plain_values(kind: Any, limits: Fields) -> st.SearchStrategy[Any]:
    if kind in PLAIN:
        return PLAIN[kind]
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if issubclass(kind, Record | Item):
        return made(kind)
    if kind is str:
        texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=limits.get("min_length", 0), max_size=30)
        pattern = limits.get("pattern", "").replace("$", r"\Z")
        return st.from_regex(pattern).filter(lambda name: len(name) <= 100) if pattern else texts
    low: Any = limits.get("ge", limits.get("gt"))
    high: Any = limits.get("le", limits.get("lt"))
    if kind is int:
        return st.integers(low + ("gt" in limits), high - ("lt" in limits))
    assert kind is float, f"how is {kind} drawn?"
    return st.floats(low, high, exclude_min="gt" in limits, exclude_max="lt" in limits, allow_nan=False)


def made(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for one type of record; a field that may be absent is at times."""
    if cls is TokenFigures:
        return token_figures()
    if issubclass(cls, Item):
        items = msgspec.structs.fields(cls)
        fields = {item.name: (values(item.type), item.required) for item in items}
    else:
        fields = {
            name: (values(one.annotation, one.metadata), one.is_required()) for name, one in cls.model_fields.items()
        }
    return st.fixed_dictionaries(
        {name: value for name, (value, required) in fields.items() if required},
        optional={name: value for name, (value, required) in fields.items() if not required},
    ).map(lambda drawn: cls(**AGREED.get(cls, dict)(drawn)))


def _task(drawn: Fields) -> Fields:
    # Runs at temperature 0 are all alike, and a task asks for one of them at most.
    greedy = "sampling" in drawn and drawn["sampling"].temperature == 0
    return {"task_id": "t", "prompt": "1+1"} | drawn | ({"repeat_times": 1} if greedy else {})


def _answer(drawn: Fields) -> Fields:
    return {"question": drawn["question"], **({"responses": r} if (r := drawn.get("responses")) else {"result": "1"})}


def _example(drawn: Fields) -> Fields:
    return {k: v for k, v in drawn.items() if k not in (("prompt",) if "messages" in drawn else ("tools",))}


def _demonstration(drawn: Fields) -> Fields:
    has_answer = drawn.get("messages") and drawn["messages"][-1].role == "assistant"
    return _example({"prompt": "1+1"} | ({} if has_answer else {"response": "2"}) | drawn)


AGREED: dict[type[Any], Callable[[Fields], Fields]] = {
    Task: _task,
    Answer: _answer,
    Demonstration: _demonstration,
    Preference: lambda drawn: _example({"prompt": "1+1"} | drawn | {"rejected": drawn["chosen"] + "?"}),
    Message: lambda drawn: {"content": ""} | drawn | ({"role": "assistant"} if "tool_calls" in drawn else {}),
    StructuredOutputs: lambda drawn: dict(list(drawn.items())[:1]) or {"json_object": True},
    DrawnResponse: lambda drawn: (
        drawn
        | dict.fromkeys(("token_ids", "logprobs"), drawn["token_ids"] * 4)
        | {name: bytes(len(drawn["token_ids"])) for name in ("kept",) if name in drawn}
    ),
    Turn: lambda drawn: drawn | {name: drawn[name] * 4 for name in ("prompt",) if name in drawn},
    Contribute: lambda drawn: drawn | {name: drawn[name][:1] for name in ("covers",) if name in drawn},
}
"""Where fields of a record depend on each other: what is made of them that were drawn each by itself."""


@st.composite
def token_figures(draw: st.DrawFn) -> TokenFigures:
    """Return a strategy for figures whose columns agree."""
    samples = draw(st.sets(st.integers(0, MAX_SAMPLES - 1), min_size=1, max_size=4).map(sorted))
    lengths = draw(st.lists(st.integers(0, 5), min_size=len(samples), max_size=len(samples)))

    def column(low: float | None) -> bytes:
        halves = st.floats(low, width=16, allow_nan=False, allow_infinity=False)
        return np.array(draw(st.lists(halves, min_size=sum(lengths), max_size=sum(lengths))), "<f2").tobytes()

    return TokenFigures(
        **{name: draw(identifiers) for name in ("trainer", "run", "task_id")},
        step=draw(positive),
        position=draw(made(Position)),
        samples=samples,
        lengths=lengths,
        updates_before=draw(st.lists(counts, min_size=len(samples), max_size=len(samples))),
        gaps=column(None),
        entropies=column(0),
    )


samplings = made(Sampling)
tasks = made(Task)
records = st.one_of([made(cls) for cls in codec.RECORDS if cls is not ExperienceGroup])


kept_sets = st.frozensets(st.integers(0, 2**31 - 1) | st.integers(0, 300), max_size=5)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    prompt = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
    response = draw(st.lists(st.integers(0, 2**31 - 1), max_size=20))
    n = len(response)
    starts = draw(st.lists(st.integers(0, n), unique=True, max_size=3).map(sorted))
    turns = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3).map(sorted)) if n else []
    rewards = st.lists(st.floats(width=32), min_size=len(turns), max_size=len(turns))
    told = draw(st.booleans())
    teacher = st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)
    return Rollout(
        prompt_token_ids=prompt,
        response_token_ids=response,
        logprobs=draw(st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)),
        mask=draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n)),
        reward=draw(st.floats(width=32)),
        versions=[(start, draw(counts)) for start in starts],
        finish_reason=draw(text),
        metrics=draw(metrics),
        turn_starts=turns if told else None,
        turn_rewards=draw(st.none() | rewards) if told else None,
        sampling=draw(st.none() | samplings),
        teacher_logprobs=draw(st.none() | teacher),
        kept=draw(st.none() | st.lists(kept_sets, min_size=n, max_size=n).map(lambda sets: kept_of(*sets))),
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Rollout], ExperienceGroup]:
    """The samples, and the group that was built of them."""
    samples = draw(st.lists(rollouts(), min_size=1, max_size=5))
    if draw(st.booleans()):
        layers, k = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        samples = [
            dataclasses.replace(one, routes=np.arange(n * layers * k, dtype=np.uint8).reshape(n, layers, k))
            for one in samples
            for n in [len(one.prompt_token_ids) + len(one.response_token_ids)]
        ]
    fields: dict[str, Any] = {
        name: draw(identifiers) for name in ("task_id", "batch_id", "workflow", "model", "explorer", "incarnation")
    }
    return samples, build_group(samples, attempt=draw(positive), batch_type=draw(batch_types), **fields)


def small_group(samples: int = 2, *, response: int = 5) -> ExperienceGroup:
    """A group that is the same each time."""
    return build_group(
        [
            Rollout(
                prompt_token_ids=[1, 2, 3],
                response_token_ids=np.arange(response) + 10 * i,
                logprobs=(-np.arange(response) / 4).astype(np.float32),
                mask=None if i % 2 else np.arange(response) % 2 == 0,
                reward=float(i),
                versions=[(0, 7)],
                metrics={"accuracy": float(i)},
            )
            for i in range(samples)
        ],
        **OF_GROUP,
    )


def full_group(*, kept: bool = True) -> ExperienceGroup:
    """The same with every optional column; the second of its samples knows nothing of them that may be unknown."""
    first, second = small_group().samples()

    def again(sample: Sample, **more: Any) -> Rollout:
        prompt, response = sample.tokens[:3], sample.tokens[3:]
        told: Fields = {"reward": 0.5, "versions": [(0, 7)], "metrics": {"accuracy": 1.0}, "logprobs": sample.logprobs}
        return Rollout(prompt_token_ids=prompt, response_token_ids=response, **told, **more)

    known = again(
        first,
        mask=first.mask,
        turn_starts=[0, 2, 4],
        turn_rewards=[0.25, float("nan"), -1.0],
        sampling=Sampling(temperature=0.75, top_p=0.5, top_k=20, min_p=0.125),
        teacher_logprobs=[-0.5, -0.25, -1.0, -2.0, 0.0],
        routes=np.arange(7 * 2 * 2, dtype=np.uint8).reshape(7, 2, 2),
        kept=kept_of([0, 7], [], [2], [3, 4], [4, 90, 99]) if kept else None,
    )
    unknown = again(second, routes=np.arange(8 * 2 * 2, dtype=np.uint8)[::-1].reshape(8, 2, 2))
    return build_group([known, unknown], **OF_GROUP)
