"""Ways to damage a message: its bytes, or one of its values. All chance is of one generator."""

import json
import random
from typing import Any

import msgpack

LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    255,
    1024,
    16_384,
    65_536,
    2**31 - 1,
    2**31,
    2**53 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**31) - 1,
    -(2**63),
    0.0,
    -0.5,
    1.5,
    1e9,
    253_402_300_799.0,
    1e39,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "train",
    "\x00",
    "../../etc/passwd",
    "a" * 201,
    "é" * 300,
    "\U0001f600",
    "null\nline",
    b"",
    b"\xff" * 9,
)
_MAGIC = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc1",
    b"\xc7\x01\x05\x00",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\x91" * 40,
    b"\x81\xa1a" * 40,
    b"\xff\xfe",
    b"\x00" * 8,
    b'{"a":' * 30,
    b"9" * 30,
)


def damaged(rng: random.Random, value: bytes, others: list[bytes]) -> bytes:
    """The message with something else in it, or less, or more."""
    if rng.random() < 0.7:
        changed = _restructured(rng, value)
        if changed is not None:
            return changed if rng.random() < 0.9 else _scratched(rng, changed, others)
    return _scratched(rng, value, others)


def altered(rng: random.Random, data: Any) -> Any:
    """Plain data of which one value is another one. ``data`` itself may be changed."""
    place = _place(rng, data)
    if place is None:
        return rng.choice(LEAVES)
    container, step = place
    old = container[step]
    kind = rng.random()
    if kind < 0.55:
        container[step] = rng.choice(LEAVES)
    elif kind < 0.7 and isinstance(old, int) and not isinstance(old, bool):
        container[step] = old + rng.choice([-1, 1, 7, -1000, 1 << 40])
    elif kind < 0.78:
        del container[step]
    elif kind < 0.86 and isinstance(old, list) and old:
        container[step] = old * rng.choice([2, 10, 300])
    elif kind < 0.92:
        other = _place(rng, data)
        if other is not None:
            container[step] = other[0][other[1]]
    elif isinstance(container, dict):
        container[rng.choice(["x", "task_id", "version", "", "metrics"])] = old
    else:
        container.append(old)
    return data


def _place(rng: random.Random, data: Any) -> tuple[Any, Any] | None:
    found = None
    while isinstance(data, dict | list) and data:
        step = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        found = data, step
        data = data[step]
        if rng.random() < 0.35:
            break
    return found


def _restructured(rng: random.Random, value: bytes) -> bytes | None:
    is_json = value[:1] == b"{"
    try:
        data = json.loads(value) if is_json else msgpack.unpackb(value, strict_map_key=False)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            data = altered(rng, data)
        if is_json:
            return json.dumps(data, default=repr).encode("utf-8", "surrogatepass")
        packed: bytes = msgpack.packb(data)
    # Not readable, or not writable any more: then its bytes are damaged instead.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    return packed


def _scratched(rng: random.Random, value: bytes, others: list[bytes]) -> bytes:
    if not value:
        return rng.randbytes(rng.randrange(40))
    copy = bytearray(value)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(copy) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            del copy[at:]
        elif kind == 1:
            del copy[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            copy[at:at] = rng.choice(_MAGIC)
        elif kind == 3:
            other = rng.choice(others)
            copy[at:] = other[rng.randrange(len(other) + 1) :]
        elif kind == 4:
            copy[at:at] = copy[at : at + rng.randrange(1, 60)] * rng.choice([1, 2, 30])
        elif copy:
            copy[rng.randrange(len(copy))] = rng.randrange(256) if kind == 5 else rng.choice(b"\x00\x80\x90\xc0\xff")
    return bytes(copy)
