"""Parts of an objective are found by name, those of installed packages too."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.objectives import evaluate, tokens
from trinity_bus.config import TrainerSettings
from trinity_bus.errors import ConfigError
from trinity_bus.telemetry.metrics import TRAIN
from trinity_bus.training.objectives import registry
from trinity_bus.training.objectives.losses import PolicyLoss, TokenLosses, Tokens
from trinity_bus.training.objectives.objective import Objective

ROOT = Path(__file__).parents[4]


class MyLoss(PolicyLoss):
    metrics = ("scale",)

    def __call__(self, of: Tokens) -> TokenLosses:
        scale = float(self.settings.objective_options["scale"])
        return TokenLosses(losses=-scale * of.logprobs, metrics={"scale": of.weight.new_full((2,), scale)})


def installed(monkeypatch: pytest.MonkeyPatch, **parts: str) -> None:
    """Have packages register losses."""
    entries = [EntryPoint(name, value, registry.GROUPS["loss"]) for name, value in parts.items()]
    monkeypatch.setattr(registry, "installed", lambda group: entries if group == registry.GROUPS["loss"] else [])


def test_every_part_of_this_package_can_be_made_and_stands_on_the_page_of_objectives() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "objectives.md").read_text(), re.MULTILINE))
    for kind, parts in registry.BUILT_IN.items():
        assert parts.keys() <= rows
        for name in parts:
            assert Objective(TrainerSettings(**{kind: name})).metrics


def test_a_loss_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[trinity_bus.losses]\nmine = a_package_of_losses:MyLoss\n")
    (tmp_path / "a_package_of_losses.py").write_text(f"from {__name__} import MyLoss\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "installed", registry.installed.__wrapped__)  # without what it remembers
    settings = TrainerSettings(loss="mine", correction="none", objective_options={"scale": 3.0})
    loss, _, metrics = evaluate(tokens([-1.0, -2.0], advantages=[0.0, 0.0]), settings)
    assert loss == 4.5
    assert metrics["scale"] == 3.0


@pytest.mark.parametrize(
    ("parts", "settings", "message"),
    [
        (
            {},
            {"loss": "pp0"},
            "trainer.loss='pp0' is not known; did you mean 'ppo'.*there are ppo, gspo, .*, and packages",
        ),
        ({}, {"advantage": "magic"}, "trainer.advantage='magic' is not known"),
        ({}, {"correction": "mask"}, "did you mean 'masked'"),
        ({"ppo": "evil:Loss"}, {}, "evil:Loss registers the loss 'ppo', which trinity_bus.*PPO is"),
        ({"far": "no_such_package:Loss"}, {"loss": "far"}, "cannot be imported: No module named 'no_such_package'"),
        ({"odd": "os:getcwd"}, {"loss": "odd"}, "os:getcwd is no PolicyLoss"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, str], settings: dict[str, Any], message: str
) -> None:
    installed(monkeypatch, **parts)
    with pytest.raises(ConfigError, match=message):
        Objective(TrainerSettings(**settings))


def test_every_figure_of_a_step_is_one_that_the_engine_reports() -> None:
    reported = {*Objective(TrainerSettings()).metrics, "mismatch_k3", "grad_norm", "learning_rate", "groups_skipped"}
    reported |= {
        "trained_tokens",
        "samples_left_out",
        "tokens_without_kept",
        "reward_mean",
        "reward_std",
        "step",
        "version",
    }
    assert set(TRAIN) <= reported
