import asyncio
from pathlib import Path

import pytest

from tests.support.recipes import RECIPES, ROOT, stand_in
from trinity_bus.config import Settings
from workers.preconditions import problems
from workers.taskset.dataset import load
from workers.taskset.description import DatasetError, describe

SERVICES = ("coordinator", "explorer", "trainer", "taskset", "gateway")
SECRETS = {"TRINITY_BUS_EXPLORER__HTTP_KEY": "k" * 16, "TRINITY_BUS_GATEWAY__API_KEYS": "agent:" + "k" * 16}
"""Their pages say that they are to be made."""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_is_whole(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRINITY_BUS_CONFIG", str(recipe / "mesh.toml"))
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    settings = Settings()
    assert [problem for service in SERVICES for problem in problems(service, settings)] == []
    own = settings.taskset
    assert own.path == Path("recipes") / recipe.name / "tasks.toml"
    assert {source.rows is None for source in describe(own.path).train} == {False}, "rows are counted"

    sets = load(stand_in(recipe, tmp_path), taskset=own.name, seed=own.seed, order=own.order)
    assert sets.train is not None
    assert sets.train.size == 4
    assert sets.evals
    (tmp_path / "tasks.toml").write_text((recipe / "tasks.toml").read_text())
    with pytest.raises(DatasetError, match="has 4 rows, and the description says"):
        load(tmp_path / "tasks.toml", taskset=own.name)

    page, table = (recipe / "README.md").read_text(), (ROOT / "recipes" / "README.md").read_text()
    assert f"]({recipe.name}/README.md)" in table
    assert "**Requirements.**" in page
    assert "Not yet run" in page


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(48 + 24) / 2", "36"), ("1,000 * -1.5", "-1500"), ("1 / 3", "0.333333"), ("0.1 + 0.2", "0.3")],
)
def test_the_calculator(expression: str, value: str) -> None:
    from recipes.tools.calculator import calculate

    assert asyncio.run(calculate(expression)) == value


@pytest.mark.parametrize("expression", ["1 / 0", "9 ** 9", "open('x')", "1 +", "True", "(" * 150, "9e300*" * 32 + "1"])
def test_the_calculator_tells_what_it_cannot_work_out(expression: str) -> None:
    from recipes.tools.calculator import calculate
    from trinity_bus import ToolError

    with pytest.raises(ToolError):
        asyncio.run(calculate(expression))
