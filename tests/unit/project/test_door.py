"""``trinity_bus`` has everything that users import, costs nothing to import, and is typed for those who check."""

import ast
import builtins
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trinity_bus

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "vllm", "megatron", "transformers", "safetensors", "tokenizers", "ray"}


@pytest.mark.parametrize("name", trinity_bus.__all__)
def test_every_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    value = getattr(trinity_bus, name)
    assert value.__name__.rpartition(".")[2] == name
    assert inspect.getdoc(value)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = trinity_bus.nothing  # type: ignore[attr-defined]
    assert set(trinity_bus.__all__) <= set(dir(trinity_bus))


def test_importing_it_is_cheap() -> None:
    program = (
        "import sys; before = set(sys.modules); import trinity_bus; "
        "assert {m.partition('.')[0] for m in set(sys.modules) - before} & {'pydantic', 'aiokafka', 'numpy'} == set(); "
        "from trinity_bus import *; "
        f"assert {HEAVY!r} & {{m.partition('.')[0] for m in sys.modules}} == set(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)


def test_every_error_is_ours_and_one_of_pythons_own() -> None:
    errors = [value for name in trinity_bus.__all__ if inspect.isclass(value := getattr(trinity_bus, name))]
    errors = [error for error in errors if issubclass(error, BaseException)]
    assert len(errors) > 15
    ordinary = {cls for cls in vars(builtins).values() if inspect.isclass(cls)} - {Exception, BaseException, object}
    for error in errors:
        assert issubclass(error, trinity_bus.TrinityError)
        if error not in {trinity_bus.TrinityError, trinity_bus.BusError}:
            assert ordinary & set(error.__mro__), error


def test_clients_raise_nothing_but_our_errors() -> None:
    names = {name for name, value in vars(builtins).items() if inspect.isclass(value)} - {"StopAsyncIteration"}
    for path in (ROOT / "trinity_bus" / "client").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                assert node.exc.func.id not in names, f"{path.name}:{node.lineno}"


PROGRAM = """
from collections.abc import Sequence

from trinity_bus import BatchHandle, Client, Rollout, RolloutContext, Sampling, SingleRunWorkflow, Task, register
from trinity_bus import Scheduler, Status, deserialize_many, prompt_tokens


@register("short")
class Short(SingleRunWorkflow):
    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        prompt = prompt_tokens(task, ctx.tokenizer)
        (said,) = await ctx.generate(prompt, task.sampling)
        return Rollout(
            prompt_token_ids=prompt, response_token_ids=said.token_ids, logprobs=said.logprobs, reward=1.0
        )


async def main(questions: Sequence[str]) -> float:
    tasks = [Task(workflow="short", prompt=q, repeat_times=8, sampling=Sampling(top_p=0.9)) for q in questions]
    async with Client() as client:
        batch: BatchHandle = await client.submit(tasks, batch_type="train")
        async for result in batch:
            print(result.task_id, result.metrics.get("reward"), result.error)
            group = await client.experiences(result)
            if group is not None:
                print([sample.reward for sample in group.samples()])
        return (await batch.result(timeout=60)).metrics["rollout/reward/mean"]


def rewards(statuses: Sequence[Status], payloads: Sequence[bytes]) -> list[float]:
    return [sample.reward for payload in payloads for sample in deserialize_many(payload)]
"""


def test_a_users_program_passes_mypy_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    """With mypy's own defaults, as users have it: no plugin of pydantic's."""
    wrong = PROGRAM.replace("repeat_times=8", "repeat_time=8").replace('["rollout/reward/mean"]', ".reward")
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(wrong)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    environment = {"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    told = subprocess.run(
        [*command, "mine.py", "wrong.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
        check=False,
    ).stdout  # fmt: skip
    assert {line.partition(":")[0] for line in told.splitlines() if ": error: " in line} == {"wrong.py"}
    assert 'Unexpected keyword argument "repeat_time" for "Task"' in told
    assert '"dict[str, float]" has no attribute "reward"' in told


def test_the_defaults_in_the_table_of_what_people_set_are_those_of_the_settings() -> None:
    from trinity_bus import Settings

    settings, checked_names = Settings(), 0
    for line in (ROOT / "docs" / "counterparts.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        here = re.match(r"`([a-z]+)\.(\w+)`", cells[2]) if len(cells) == 4 else None
        if here is None:
            continue
        value = getattr(getattr(settings, here[1]), here[2])
        told = cells[3].replace("`", "").split(",")[0]
        wanted = "unset" if value is None else f"{value:g}" if type(value) is float else str(value)
        assert told.partition(":")[0].partition(" ")[0] in {wanted, str(value)}, line
        checked_names += 1
    assert checked_names > 18
