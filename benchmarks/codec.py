"""The codec against pickle + safetensors, msgspec lists and JSON, on groups of 8 samples of 2,200 tokens.

Every format carries the same group: identifiers, token ids, logprobs, masks, rewards, versions and two metrics a
sample. Each starts from, and ends in, the shape in which its users hold a group:

* the codec: an ``ExperienceGroup`` of numpy columns;
* pickle + safetensors: per sample a dict of plain fields and a dict of torch tensors; the fields of all samples are
  pickled, the tensors are one safetensors blob, as is common between a rollout worker and a torch trainer;
* msgspec lists and JSON: dicts of plain Python lists.

The goal is ten times the fastest of these. Two more comparisons have no goal: pickle + safetensors with numpy arrays,
which it handles faster than tensors; and the codec with what surrounds it, from the engine's per-sample arrays to
bytes, and from bytes to per-sample views.

Unlike the others the codec also checks on either side that lengths, offsets and identifiers fit together. The
formats take turns of a few hundredths of a second, so that a busy machine slows all alike, and medians are compared.
"""

import json
import pickle
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from benchmarks._options import parser
from benchmarks._records import named_group
from benchmarks._report import Row, less, report
from schemas import ExperienceGroup, Rollout, build_group
from schemas.codec import decode, encode

SAMPLES, PROMPT, RESPONSE = 8, 200, 2000
TOKENS = SAMPLES * (PROMPT + RESPONSE)
GROUPS = 8
ROUNDS = 25
TURN_S = 0.03
LENGTHS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    groups: list[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def make_inputs(seed: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            prompt_token_ids=rng.integers(0, 151_936, PROMPT, np.int32),
            response_token_ids=rng.integers(0, 151_936, RESPONSE, np.int32),
            logprobs=-rng.random(RESPONSE, np.float32),
            mask=rng.random(RESPONSE) < 0.95,
            reward=float(rng.integers(0, 2)),
            versions=[(0, 41), (1200, 42)] if run % 4 == 0 else [(0, 41)],
            metrics={"accuracy": float(rng.integers(0, 2)), "format_reward": 0.1},
        )
        for run in range(SAMPLES)
    ]


def fields(sample: Rollout) -> dict[str, Any]:
    return {
        "reward": sample.reward,
        "prompt_length": PROMPT,
        "versions": list(sample.versions),
        "finish_reason": sample.finish_reason,
        "metrics": dict(sample.metrics),
    }


def arrays(sample: Rollout) -> dict[str, np.ndarray]:
    return {
        "tokens": np.concatenate([np.asarray(sample.prompt_token_ids), np.asarray(sample.response_token_ids)]),
        "logprobs": np.asarray(sample.logprobs),
        "action_mask": np.asarray(sample.mask),
    }


def pickle_safetensors(name: str, library: Any, group_list: list[Any]) -> Format:
    """Return groups as (fields of the group, of each sample, tensors of each sample)."""

    def to_bytes(group: Any) -> bytes:
        shared, samples, tensors = group
        meta = pickle.dumps((shared, samples), pickle.HIGHEST_PROTOCOL)
        blob: bytes = library.save({f"{i}:{k}": v for i, sample in enumerate(tensors) for k, v in sample.items()})
        return LENGTHS.pack(len(meta), len(blob)) + meta + blob

    def from_bytes(value: bytes) -> Any:
        meta_length, blob_length = LENGTHS.unpack_from(value)
        end = LENGTHS.size + meta_length
        shared, samples = pickle.loads(value[LENGTHS.size : end])
        tensors: list[dict[str, Any]] = [{} for _ in samples]
        for label, tensor in library.load(value[end : end + blob_length]).items():
            index, _, key = label.partition(":")
            tensors[int(index)][key] = tensor
        return shared, samples, tensors

    return Format(name, group_list, to_bytes, from_bytes)


def formats() -> list[Format]:
    inputs = [make_inputs(seed) for seed in range(GROUPS)]
    shared = [
        named_group(f"gsm8k-train-{seed:06}", f"batch-{seed // 8:06}", incarnation="0123456789abcdef")
        for seed in range(GROUPS)
    ]
    numpy_groups = [
        (ids, [fields(s) for s in samples], [arrays(s) for s in samples])
        for ids, samples in zip(shared, inputs, strict=True)
    ]
    torch_groups = [
        (ids, plain, [{k: torch.from_numpy(v) for k, v in sample.items()} for sample in tensors])
        for ids, plain, tensors in numpy_groups
    ]
    list_groups = [
        {
            **ids,
            "samples": [{**f, **{k: v.tolist() for k, v in a.items()}} for f, a in zip(plain, numbers, strict=True)],
        }
        for ids, plain, numbers in numpy_groups
    ]
    groups = [build_group(samples, **ids) for ids, samples in zip(shared, inputs, strict=True)]
    msgpack_encoder, msgpack_decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()
    return [
        Format("codec", groups, encode, lambda value: decode(value, ExperienceGroup)),
        pickle_safetensors("pickle + safetensors", safetensors.torch, torch_groups),
        Format("msgspec lists", list_groups, msgpack_encoder.encode, msgpack_decoder.decode),
        Format("JSON", list_groups, lambda group: json.dumps(group).encode(), json.loads),
        pickle_safetensors("pickle + safetensors of numpy arrays", safetensors.numpy, numpy_groups),
        Format(
            "codec from and to samples",
            list(zip(shared, inputs, strict=True)),
            lambda pair: encode(build_group(pair[1], **pair[0])),
            lambda value: list(decode(value, ExperienceGroup).samples()),
        ),
    ]


BASELINES = slice(1, 4)
"""Of the formats: those that the goal is about."""


def seconds_each(run: Callable[[Any], Any], items: list[Any]) -> float:
    """Mean seconds of ``run`` over ``items``, in as many passes as a turn takes."""
    passes = 0
    start = now = time.perf_counter()
    while now - start < TURN_S:
        for item in items:
            run(item)
        passes += 1
        now = time.perf_counter()
    return (now - start) / (passes * len(items))


def main() -> None:
    options = parser(__doc__).parse_args()
    all_formats = formats()
    encoded = [[f.encode(group) for group in f.groups] for f in all_formats]
    encode_s: list[list[float]] = [[] for _ in all_formats]
    decode_s: list[list[float]] = [[] for _ in all_formats]
    for _ in range(1 if options.short else ROUNDS):
        for i, f in enumerate(all_formats):
            encode_s[i].append(seconds_each(f.encode, f.groups))
            decode_s[i].append(seconds_each(f.decode, encoded[i]))
    rows = []
    encode_median = [statistics.median(times) for times in encode_s]
    decode_median = [statistics.median(times) for times in decode_s]
    size = [statistics.mean(map(len, values)) / TOKENS for values in encoded]
    rows.append(less("bytes per token", size[0], "B", 9))
    encode_ratio = min(encode_median[BASELINES]) / encode_median[0]
    decode_ratio = min(decode_median[BASELINES]) / decode_median[0]
    rows.append(Row("encode speed over the fastest baseline", encode_ratio, "x", 10))
    rows.append(Row("decode speed over the fastest baseline", decode_ratio, "x", 10))
    for i, f in enumerate(all_formats):
        rows.append(Row(f"encode, {f.name}", TOKENS / encode_median[i] / 1e6, "Mtokens/s"))
        rows.append(Row(f"decode, {f.name}", TOKENS / decode_median[i] / 1e6, "Mtokens/s"))
    for i, f in enumerate(all_formats[1:-1], start=1):
        rows.append(less(f"bytes per token, {f.name}", size[i], "B"))
        rows.append(Row(f"encode speed over {f.name}", encode_median[i] / encode_median[0], "x"))
        rows.append(Row(f"decode speed over {f.name}", decode_median[i] / decode_median[0], "x"))
    names = ", ".join(f.name for f in all_formats[BASELINES])
    report(
        "codec",
        f"Codec: groups of {SAMPLES} samples x {PROMPT + RESPONSE:,} tokens",
        rows,
        options,
        notes=[f"The baselines of the goal are {names}, with tensors in safetensors as trainers have them."],
    )


if __name__ == "__main__":
    main()
