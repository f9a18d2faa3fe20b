import json
from pathlib import Path

import pytest

from trinity_bus.sizing.fleet import BROKER_S, BUSY, BUSY_ON_POLICY, COORDINATOR_S, HEARTBEAT_S, TOKEN_BYTES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
ALIKE = 0.05
FLEET = "1,000 explorers of 64 slots"


def kept(benchmark: str) -> dict[str, float]:
    rows = json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text(encoding="utf-8"))["rows"]
    return {row["metric"]: row["value"] for row in rows}


SCHEDULING, FLEETS, CODEC = kept("scheduling"), kept("fleet"), kept("codec")


@pytest.mark.parametrize(
    ("constant", "measured", "shown"),
    [
        (COORDINATOR_S * 1e6, SCHEDULING["8 explorers: CPU of coordinator"], "{:.0f} us a task"),
        (BROKER_S * 1e6, SCHEDULING["8 explorers: CPU of broker"], "{:.0f} us a task"),
        (
            HEARTBEAT_S * 1e6,
            FLEETS[f"{FLEET}: idle, slots taken: share of a core"] / FLEETS[f"{FLEET}: idle: heartbeats"] * 1e6,
            "{:.0f} us a heartbeat",
        ),
        (BUSY_ON_POLICY, SCHEDULING["synchronous: one batch at a time: spent on what counts"], "{:.2f}"),
        (BUSY, SCHEDULING["asynchronous, staleness <= 8: spent on what counts"], "{:.2f}"),
        (TOKEN_BYTES, CODEC["bytes per token"], "{:.2f} bytes"),
        (2000 * COORDINATOR_S, 2e-3 * SCHEDULING["8 explorers: CPU of coordinator"], "{:.2f} of a core's work"),
    ],
    ids=["coordinator", "broker", "heartbeat", "busy on policy", "busy", "token", "2,000 tasks a second"],
)
def test_a_constant_is_what_was_measured_and_what_the_page_says(constant: float, measured: float, shown: str) -> None:
    assert constant == pytest.approx(measured, rel=ALIKE)
    assert shown.format(constant) in PAGE


def test_the_page_tells_of_fan_out_and_of_one_transfer_what_was_measured() -> None:
    assert f"{kept('fan_out')['200 Mbit/s, 16 members: over the time for one']:.2f} of one transfer at 16" in PAGE
    share = kept("weight_sync")["150M, nccl, 1 explorer: transfer's share of raw gloo"]
    assert f"{share:.2f} of the speed of gloo's own broadcast" in PAGE
