"""What the parts of an experience group owe each other, checked by writers and readers alike.

The arrays already have their dtypes and dimensions; these rules are about values, and about lengths that must agree.
"""

import re
from itertools import chain
from operator import ge, sub

from schemas.errors import DecodeError, shown
from schemas.experience import MAX_SAMPLES, MAX_SPANS, ExperienceGroup
from schemas.record import MAX_ID_LENGTH

_IDENTIFIERS = ("task_id", "batch_id", "workflow", "model", "explorer", "incarnation")
_IDENTIFIER = rf"[A-Za-z0-9][A-Za-z0-9._:/@#-]{{0,{MAX_ID_LENGTH - 1}}}"
_all_identifiers = re.compile(rf"(?:{_IDENTIFIER}\n){{{len(_IDENTIFIERS)}}}").fullmatch
_one_identifier = re.compile(_IDENTIFIER).fullmatch
_DICT = frozenset({dict})
_STR = frozenset({str})
_NUMBER = frozenset({float, int})


def check_group(group: ExperienceGroup) -> None:
    """Pass ``group``, or say the first thing that is wrong with it.

    Raises:
        DecodeError: A field has the wrong type or value, or lengths contradict each other.
    """
    _check_fields(group)
    _check_lengths(group)


def _check_fields(group: ExperienceGroup) -> None:
    identifiers = (group.task_id, group.batch_id, group.workflow, group.model, group.explorer, group.incarnation)
    if not _STR.issuperset(map(type, identifiers)) or not _all_identifiers("\n".join(identifiers) + "\n"):
        for name, value in zip(_IDENTIFIERS, identifiers, strict=True):
            if type(value) is not str:
                raise DecodeError("wrong_type", f"experience: {name} = {shown(value)} is not a string")
            if not _one_identifier(value):
                raise DecodeError("bad_value", f"experience: {name} = {shown(value)} is not an identifier")
    if type(group.attempt) is not int or group.attempt < 1:
        raise DecodeError("bad_value", f"experience: attempt = {shown(group.attempt)} is not an integer of 1 or more")
    if group.batch_type not in ("train", "eval"):
        raise DecodeError(
            "bad_value", f"experience: batch_type = {shown(group.batch_type)} is neither 'train' nor 'eval'"
        )
    metrics, reasons = group.metrics, group.finish_reasons
    if (
        type(metrics) is not list
        or not _DICT.issuperset(map(type, metrics))
        or not _STR.issuperset(map(type, chain.from_iterable(metrics)))
        or not _NUMBER.issuperset(map(type, chain.from_iterable(map(dict.values, metrics))))
    ):
        raise DecodeError(
            "wrong_type", f"experience: metrics = {shown(metrics)} is not a list of maps from string to number"
        )
    if type(reasons) is not list or not _STR.issuperset(map(type, reasons)):
        raise DecodeError("wrong_type", f"experience: finish_reasons = {shown(reasons)} is not a list of strings")


def _check_lengths(group: ExperienceGroup) -> None:
    samples = len(group.lengths)
    if not 1 <= samples <= MAX_SAMPLES:
        raise DecodeError("bad_buffer", f"experience: {samples} samples, 1 to {MAX_SAMPLES} are allowed")
    for name in ("prompt_lengths", "rewards", "run_ids"):
        rows = len(getattr(group, name))
        if rows != samples:
            raise DecodeError("bad_buffer", f"experience: {name} has {rows} entries for {samples} samples")
    for name in ("metrics", "finish_reasons"):
        rows = len(getattr(group, name))
        if rows not in (0, samples):
            raise DecodeError("bad_buffer", f"experience: {name} has {rows} entries for {samples} samples")
    # Python's integers are faster than numpy here: a group has a handful of samples.
    lengths = group.lengths.tolist()
    prompts = group.prompt_lengths.tolist()
    if sum(lengths) != len(group.tokens) or min(lengths) < 1:
        raise DecodeError("bad_buffer", f"experience: lengths = {shown(lengths)} are not of {len(group.tokens)} tokens")
    responses = list(map(sub, lengths, prompts))
    if min(prompts) < 0 or min(responses) < 0:
        raise DecodeError(
            "bad_buffer", f"experience: prompt_lengths = {shown(prompts)} do not fit lengths = {shown(lengths)}"
        )
    total = sum(responses)
    if total != len(group.logprobs):
        raise DecodeError(
            "bad_buffer", f"experience: logprobs has {len(group.logprobs)} entries for {total} response tokens"
        )
    if len(group.mask_bits) != (total + 7) // 8:
        raise DecodeError(
            "bad_buffer", f"experience: mask_bits has {len(group.mask_bits)} bytes for {total} response tokens"
        )
    _check_versions(group, responses)


def _check_versions(group: ExperienceGroup, responses: list[int]) -> None:
    if len(group.versions) > MAX_SPANS:
        raise DecodeError(
            "bad_buffer", f"experience: versions has {len(group.versions)} spans, at most {MAX_SPANS} are allowed"
        )
    flat = group.versions.ravel().tolist()
    if not flat:
        return
    owners, starts = flat[::3], flat[1::3]
    if min(flat) < 0 or max(owners) >= len(responses):
        raise DecodeError(
            "bad_buffer", f"experience: versions = {shown(group.versions.tolist())} has an entry out of range"
        )
    if not all(map(ge, map(responses.__getitem__, owners), starts)):
        raise DecodeError(
            "bad_buffer",
            f"experience: versions = {shown(group.versions.tolist())} starts a span after the end of its sample",
        )
    spans = list(zip(owners, starts, strict=True))
    if any(map(ge, spans, spans[1:])):
        raise DecodeError(
            "bad_buffer", f"experience: versions = {shown(group.versions.tolist())} is not ordered by sample and start"
        )
