from dataclasses import replace
from pathlib import Path

from rich.console import Console

from workers.demo.report import StepSummary, Summary, plot, results_table, stages_table

STEP = StepSummary(
    step=1, version=1, reward=0.3, loss=0.1, staleness=0.0, rewarded_at=1e9, rollout_s=1.0, train_s=0.5, sync_s=None
)
SUMMARY = Summary(
    run_id="r", subject="copy", seed=1, explorers=2, max_staleness=0, model_version=2, reward_before=0.05,
    reward_after=0.95, exact_before=0.0, exact_after=0.9, held_out_tasks=200, train_seconds=12.0,
    time_to_first_reward_s=30.0, total_seconds=60.0, tokens=1000, stages={"start Kafka": 2.0, "train": 12.0},
    steps=[STEP, replace(STEP, step=2, version=2, rewarded_at=1e9 + 1)], model="runs/r/model", trace_task="copy-1/1",
)  # fmt: skip


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    for summary in (SUMMARY, replace(SUMMARY, steps=[])):
        plot(summary, tmp_path / "reward.png")
        assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_tables_tell_before_after_and_times() -> None:
    console = Console(width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(results_table(SUMMARY), stages_table(SUMMARY))
    text = captured.get()
    for part in ("0.050", "0.950", "90.0%", "200 prompts", "start Kafka", "60.0", "a step: rollouts", "1.00"):
        assert part in text
    assert "weights to all explorers" not in text
