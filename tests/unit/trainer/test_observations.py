"""A step's figures as gauges."""

from trinity_bus.config import TrainerSettings
from trinity_bus.telemetry.metrics import TRAIN
from trinity_bus.training.objectives.objective import Objective


def test_every_figure_of_a_step_is_one_that_the_engine_reports() -> None:
    reported = {*Objective(TrainerSettings()).metrics, "mismatch_k3", "grad_norm", "learning_rate", "groups_skipped"}
    reported |= {"trained_tokens", "samples_left_out", "reward_mean", "reward_std", "step", "version"}
    assert set(TRAIN) <= reported
