"""Damaged inputs for every decoder and the coordinator's machine: 25,000 of each seed, a million by ``make fuzz``."""

import re
from pathlib import Path

import pytest

from schemas.codec import RECORDS, decode
from tests.support.fuzz.covered import ELSEWHERE, FUZZED, READS, TRUSTED
from tests.support.fuzz.decoders import BY_HAND, targets
from tests.support.fuzz.mesh import Machine
from tests.support.fuzz.run import fuzz, lines, replay
from tests.support.sampled import sampled
from trinity_bus.runners import messages

INPUTS = 50_000
SEEDS = (1, 2)


def test_every_type_of_record_is_damaged(tmp_path: Path) -> None:
    seeds = {target.name: target.samples for target in targets(tmp_path)}
    assert {type(decode(value, *RECORDS)) for value in seeds["records"]} == set(RECORDS)
    assert {type(decode(value, *RECORDS)) for value in seeds["JSON records"]} == set(BY_HAND)
    assert sum(b"tool_calls" in value for value in seeds["records"]) > 0


def test_every_module_that_reads_a_format_is_in_the_list(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    reading = {
        str(path.relative_to(root))
        for folder in ("schemas", "trinity_bus", "workers")
        for path in (root / folder).rglob("*.py")
        if re.search(READS, path.read_text())
    }
    trusted = {path for path in reading if path.startswith(tuple(TRUSTED))}
    assert reading == trusted | FUZZED.keys() | ELSEWHERE.keys(), "add it to tests/support/fuzz/covered.py"
    assert not trusted & (FUZZED.keys() | ELSEWHERE.keys())
    assert all(any(path.startswith(start) for path in trusted) for start in TRUSTED)
    assert set(FUZZED.values()) <= {target.name for target in targets(tmp_path)}
    assert all((root / test).exists() for test in ELSEWHERE.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", sampled(SEEDS, 1))
def test_every_input_is_taken_or_refused_and_soon(seed: int, tmp_path: Path) -> None:
    report = fuzz(INPUTS // len(SEEDS), seed)
    print("\n".join(lines(report, 0)))
    found = [f"{failure.problem}\nagain: {failure.save(tmp_path)}" for failure in report.failures[:5]]
    assert not found, "\n".join(found)
    assert report.is_good, f"memory grew by {report.grown} bytes"
    # All were there, and many answers to real orders among them.
    assert set(report.inputs) == {"machine", *(target.name for target in targets(tmp_path))}
    assert report.answered > INPUTS // len(SEEDS) // 250


def test_what_is_found_can_be_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def careless(body: bytes) -> object:
        return messages.TO_EXPLORER._decoder.decode(body)

    monkeypatch.setattr(messages, "to_explorer", careless)
    report = fuzz(4000, 3)
    found = [failure for failure in report.failures if failure.target == "frames of runners"]
    assert any("UnicodeDecodeError" in failure.problem or "msgspec" in failure.problem for failure in found)
    path = found[0].save(tmp_path)
    assert replay(path) is not None
    monkeypatch.undo()
    assert replay(path) is None


def test_a_machine_that_raises_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def careless(machine: Machine, step: object) -> list[object]:
        raise ValueError("an oversight")

    monkeypatch.setattr(Machine, "take", careless)
    report = fuzz(2000, 4)
    assert any(failure.target == "machine" and "an oversight" in failure.problem for failure in report.failures)
    assert replay(report.failures[-1].save(tmp_path)) is not None
