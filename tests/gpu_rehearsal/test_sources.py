"""What begins CUDA too early, or lacks what GPUs want, is seen in the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.chart import ROOT

SOURCES: Final = [
    path for folder in ("trinity_bus", "workers", "benchmarks", "recipes", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]  # fmt: skip


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs while a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from (inner for decorator in getattr(child, "decorator_list", ()) for inner in ast.walk(decorator))
            continue
        yield child
        yield from at_import(child)


def begins_cuda_at_import(module: ast.Module) -> list[int]:
    """Lines that call ``torch.cuda`` while they are imported: what forks afterwards could not use it."""
    return [
        node.lineno
        for node in at_import(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.cuda.")
    ]


def forks_random_state_of_all_gpus(module: ast.Module) -> list[int]:
    """Lines that keep the state of random numbers without saying of which devices: it begins CUDA on all."""
    return [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == "fork_rng"
        and "devices" not in {keyword.arg for keyword in node.keywords}
    ]


def test_what_is_looked_for_is_found() -> None:
    assert begins_cuda_at_import(ast.parse("import torch\nGPUS = torch.cuda.device_count()")) == [2]
    assert begins_cuda_at_import(ast.parse("def gpus():\n    return torch.cuda.device_count()")) == []
    assert forks_random_state_of_all_gpus(ast.parse("with torch.random.fork_rng():\n    pass")) == [1]
    assert forks_random_state_of_all_gpus(ast.parse("with fork_rng(devices=[]):\n    pass")) == []


@pytest.mark.parametrize("look", [begins_cuda_at_import, forks_random_state_of_all_gpus])
def test_nothing_begins_cuda_by_itself(look: object) -> None:
    assert callable(look)
    found = {(str(path), line) for path in SOURCES for line in look(ast.parse(path.read_text(encoding="utf-8")))}
    assert found == set()


@pytest.mark.parametrize("target", ["explorer", "trainer"])
def test_images_for_gpus_have_a_compiler(target: str) -> None:
    """Triton builds what launches its kernels while engine and trainer run."""
    text = re.sub(r"\\\n\s*", " ", Path(ROOT / "Dockerfile").read_text(encoding="utf-8"))
    stages = {
        name: (of, body) for of, name, body in re.findall(r"FROM (\S+) AS (\S+)\n(.*?)(?=\nFROM|\Z)", text, re.DOTALL)
    }
    name, instructions = target, ""
    while name in stages:
        name, body = stages[name]
        instructions += body
    assert re.search(r'"\$DEVICE" = gpu \] && echo gcc libc6-dev', instructions)
