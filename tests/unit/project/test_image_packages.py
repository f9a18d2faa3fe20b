"""Each image has what its service imports: an explorer without one of its packages starts on no machine but ours."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

LOCKS = Path(__file__).parents[3] / "requirements" / "images"
OWN = ("schemas", "trinity_bus", "workers")
SERVICES = {
    "explorer": ("workers.explorer", "trinity_bus.weights.vllm", "trinity_bus.runners"),
    "trainer": ("workers.trainer", "trinity_bus.training.ranks.rank"),
}
"""What runs in each image."""
NOT_THERE = {
    "explorer": {"transformer_engine", "reasoning_gym"},
    # Rewards are computed and prompts are written by explorers; the trainer shares their modules.
    "trainer": {"transformer_engine", "math_verify", "renderers", "reasoning_gym"},
}
"""Used where it is installed, or imported by a function that is never called there."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> set[str]:
    return {normalized(line.split("==")[0]) for line in (LOCKS / name).read_text().splitlines() if "==" in line}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OWN, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)


def reached(graph: grimp.ImportGraph, roots: tuple[str, ...]) -> Iterator[str]:
    """Modules that are imported from these, the root's own submodules included, wherever the import stands."""
    waiting = [module for root in roots for module in (root, *graph.find_descendants(root))]
    seen = set(waiting)
    while waiting:
        module = waiting.pop()
        yield module
        # Importing a module imports the packages that it lies in.
        parents = [module[:at] for at in (i for i, c in enumerate(module) if c == ".") if module.startswith(OWN)]
        found = {*graph.find_modules_directly_imported_by(module), *parents} - seen
        seen |= found
        waiting += found


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_an_image_has_what_its_service_imports(graph: grimp.ImportGraph, service: str, device: str) -> None:
    there = locked("base.lock") | locked(f"torch-{device}.lock") | locked(f"{service}-{device}.lock")
    distributions = packages_distributions()
    modules = {module.split(".")[0] for module in reached(graph, SERVICES[service])}
    wanted = modules - set(OWN) - set(sys.stdlib_module_names) - NOT_THERE[service]
    assert {"msgspec", "xxhash"} <= wanted, "nothing was followed"
    missing = {
        module: names
        for module in sorted(wanted)
        if not (names := {normalized(name) for name in distributions.get(module, [module])}) & there
        # The CPU build of vLLM is another distribution of the same package.
        and not (module == "vllm" and any(name.startswith("vllm") for name in there))
    }
    assert not missing
