"""Every option of a task is one that the installed vLLM has and takes, with the ranges that it has."""

from typing import Any

import pytest

from schemas import Sampling
from tests.unit.schemas.test_messages import EVERY
from trinity_bus.inference.sampling import sampling_arguments, vllm_parameters

pytestmark = pytest.mark.e2e


def parameters(**options: Any) -> Any:
    return vllm_parameters(sampling_arguments(Sampling(**options), 2, temperature=0.5, max_tokens=9))


def test_vllm_takes_every_option_as_it_is() -> None:
    found = parameters(**EVERY)
    same = EVERY.keys() - {"logit_bias", "structured_outputs"}
    assert {name: getattr(found, name) for name in same} == {name: EVERY[name] for name in same}
    assert (found.n, found.logit_bias, found.structured_outputs.regex) == (2, {5: 2.0}, "[a-z]+")
    assert parameters(structured_outputs={"json_schema": {"type": "object"}}).structured_outputs.json == {
        "type": "object"
    }


@pytest.mark.parametrize(
    "edge",
    [
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 100.0},
        {"min_p": 1.0},
        {"top_k": -1},
        {"temperature": 2.0},
        {"logit_bias": {"0": -100.0}},
        {"structured_outputs": {"choice": ["a"]}},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"thinking_token_budget": 0},
        {"stop": [], "bad_words": []},
    ],
    ids=str,
)
def test_vllm_takes_the_edges_of_the_ranges(edge: dict[str, Any]) -> None:
    parameters(**edge)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 0.009, 0.01, 0.02, 2.0])
def test_vllm_draws_at_the_temperature_that_is_told(temperature: float) -> None:
    from vllm import SamplingParams

    told = Sampling(temperature=temperature).temperature
    assert SamplingParams(temperature=temperature).temperature == told


def test_vllm_refuses_what_contradicts_itself() -> None:
    from vllm.exceptions import VLLMClientError

    with pytest.raises(VLLMClientError, match="min_tokens"):
        parameters(min_tokens=10)
