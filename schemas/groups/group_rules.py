"""What the parts of an experience group owe each other, checked by writers and readers alike.

The arrays already have their dtypes and dimensions; these rules are about values, and about lengths that must agree.
Plain loops over Python's own integers, because a group has a handful of samples and this is on the way of every record.
"""

import re

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DecodeError, shown
from schemas.experience import MAX_METRICS, MAX_SAMPLES, MAX_SPANS, ExperienceGroup, present
from schemas.groups.column import MAX_TURNS
from schemas.groups.kept import MAX_KEPT_BYTES
from schemas.record import MAX_COUNT, MAX_ID_LENGTH

IDENTIFIERS = ("task_id", "batch_id", "workflow", "model", "explorer", "incarnation")
_IDENTIFIER = rf"[A-Za-z0-9][A-Za-z0-9._:/@#-]{{0,{MAX_ID_LENGTH - 1}}}"
_all_identifiers = re.compile(rf"(?:{_IDENTIFIER}\n){{{len(IDENTIFIERS)}}}").fullmatch
_one_identifier = re.compile(_IDENTIFIER).fullmatch


def check_group(group: ExperienceGroup, *, plain: bool) -> None:
    """Raise DecodeError for the first thing that is wrong with ``group``; ``plain``: it has no optional columns."""
    values = (group.task_id, group.batch_id, group.workflow, group.model, group.explorer, group.incarnation)
    if not _all_identifiers("\n".join(values) + "\n"):
        for name, value in zip(IDENTIFIERS, values, strict=True):
            if not _one_identifier(value):
                raise _broken("bad_value", f"{name} = {shown(value)} is not an identifier")
    samples = len(group.lengths)
    if not 1 <= samples <= MAX_SAMPLES:
        raise _broken("bad_buffer", f"{samples} samples, 1 to {MAX_SAMPLES} are allowed")
    if len(group.metrics) not in (0, samples) or len(group.finish_reasons) not in (0, samples):
        counts = f"{len(group.metrics)} and {len(group.finish_reasons)}"
        raise _broken("bad_value", f"metrics and finish_reasons have {counts} entries for {samples} samples")
    if not len(group.prompt_lengths) == len(group.rewards) == len(group.run_ids) == samples:
        counts = f"{len(group.prompt_lengths)}, {len(group.rewards)} and {len(group.run_ids)}"
        raise _broken("bad_buffer", f"prompt_lengths, rewards and run_ids have {counts} entries for {samples} samples")
    responses = _response_lengths(group)
    _check_versions(group, responses)
    if not plain:
        _check_optional(group, responses)


def _broken(reason: str, detail: str) -> DecodeError:
    return DecodeError(reason, f"{ExperienceGroup.SCHEMA}: {detail}")


def check_types(group: ExperienceGroup) -> None:
    """Raise DecodeError for a header field of the wrong type; only for writers, as a reader's parser does it."""
    for name in IDENTIFIERS:
        value = getattr(group, name)
        if not isinstance(value, str):
            raise _broken("wrong_type", f"{name} = {shown(value)} is not a string")
    if type(group.attempt) is not int or not 1 <= group.attempt <= MAX_COUNT:
        raise _broken("bad_value", f"attempt = {shown(group.attempt)} is not an integer of 1 to {MAX_COUNT}")
    if group.batch_type not in ("train", "eval"):
        raise _broken("bad_value", f"batch_type = {shown(group.batch_type)} is neither 'train' nor 'eval'")
    _check_free_form(group)


def _check_free_form(group: ExperienceGroup) -> None:
    for entry in group.metrics:
        if len(entry) > MAX_METRICS:
            raise _broken("too_large", f"{len(entry)} metrics of one sample, at most {MAX_METRICS} are allowed")
        for name, value in entry.items():
            if type(name) is not str or (type(value) is not float and type(value) is not int):
                raise _broken("wrong_type", f"metrics has {shown(name)}: {shown(value)}, not a string and a number")
    for reason in group.finish_reasons:
        if type(reason) is not str:
            raise _broken("wrong_type", f"finish_reasons has {shown(reason)}, which is not a string")


def _response_lengths(group: ExperienceGroup) -> list[int]:
    responses = []
    lengths = group.lengths.tolist()
    for length, prompt in zip(lengths, group.prompt_lengths.tolist(), strict=True):
        if not 0 <= prompt <= length > 0:
            raise _broken("bad_buffer", f"a sample has length {length} and prompt length {prompt}")
        responses.append(length - prompt)
    total = sum(responses)
    if sum(lengths) != len(group.tokens):
        raise _broken("bad_buffer", f"tokens has {len(group.tokens)} entries, the lengths add up to {sum(lengths)}")
    if total != len(group.logprobs) or (total + 7) // 8 != len(group.mask_bits):
        sizes = f"{len(group.logprobs)} entries and mask_bits {len(group.mask_bits)} bytes"
        raise _broken("bad_buffer", f"logprobs has {sizes} for {total} response tokens")
    return responses


def _check_versions(group: ExperienceGroup, responses: list[int]) -> None:
    if len(group.versions) > MAX_SPANS:
        raise _broken("bad_buffer", f"versions has {len(group.versions)} spans, at most {MAX_SPANS} are allowed")
    count = len(responses)
    owner, last = 0, -1
    for sample, start, version in group.versions.tolist():
        if (
            not owner <= sample < count
            or not 0 <= start <= responses[sample]
            or (sample == owner and start <= last)
            or version < 0
        ):
            rule = "must be ordered by sample and start, within the samples, versions 0 or more"
            raise _broken("bad_buffer", f"versions has {[sample, start, version]} after {[owner, last]}; spans {rule}")
        owner, last = sample, start


def _check_optional(group: ExperienceGroup, responses: list[int]) -> None:
    """Raise DecodeError where optional columns do not fit the samples. Values are checked by ``trainable``."""
    # ``responses``: response tokens of each sample; the group's other columns fit together.
    turns = 0
    if group.turn_starts is not None:
        turns = len(group.turn_starts)
        _check_turns(group.turn_starts, responses)
    elif group.turn_rewards is not None:
        raise _broken("bad_buffer", "turn_rewards has no turn_starts beside it")
    if (group.kept_sizes is None) != (group.kept is None):
        raise _broken("bad_buffer", "of kept_sizes and kept there is one without the other")
    sizes = [] if group.kept_sizes is None else group.kept_sizes.tolist()
    for size in sizes:
        if not 0 <= size <= MAX_KEPT_BYTES:
            raise _broken("bad_buffer", f"kept_sizes has {size}; 0 to {MAX_KEPT_BYTES} are allowed")
    rows = {"turns": turns, "samples": len(responses), "responses": sum(responses), "tokens": len(group.tokens)}
    rows["kept"] = sum(sizes)
    for column, array in present(group):
        if len(array) != rows[column.length]:
            detail = f"{column.name} has {len(array)} rows for {rows[column.length]} {column.length}"
            raise _broken("bad_buffer", detail)


def _check_turns(turn_starts: NDArray[np.int32], responses: list[int]) -> None:
    if len(turn_starts) > MAX_TURNS:
        raise _broken("bad_buffer", f"turn_starts has {len(turn_starts)} turns, at most {MAX_TURNS} are allowed")
    owner, last = 0, -1
    for sample, start in turn_starts.tolist():
        if not owner <= sample < len(responses) or not 0 <= start < responses[sample]:
            rule = "must be ordered by sample, and begin with a response token"
            raise _broken("bad_buffer", f"turn_starts has {[sample, start]} after {[owner, last]}; turns {rule}")
        if sample == owner and start <= last:
            raise _broken(
                "bad_buffer",
                f"turn_starts has {[sample, start]} after {[owner, last]}; turns of a sample follow each other",
            )
        owner, last = sample, start
