"""Answers to the console's questions, sound and random ones, and checks of them that look at no model's folder."""

from typing import Final

from hypothesis import strategies as st

from trinity_bus.errors import TrinityError
from trinity_bus.sizing.memory import MODELS
from trinity_bus.training.families import ModelShape
from workers.console.draft import Checks
from workers.preconditions import refusals

SHAPE: Final = MODELS["0.6B"]
SOUND: Final = {"mesh.model_path": "/models/small", "trainer.checkpoint_dir": "checkpoints"}


def shape_of(path: str) -> ModelShape:
    """Read no folder: there is one model, and one that is not there."""
    if path == "/models/none":
        raise TrinityError("/models/none/config.json does not exist")
    return SHAPE


CHECKS: Final = Checks(refusals, shape_of, lambda path: path != "nowhere.jsonl")

_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\x7f"), min_size=1, max_size=20).map(
    str.strip
)
_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
ANSWERS: Final = {
    "mesh.namespace": _names,
    "mesh.model_path": _texts.filter(bool),
    "rows.path": _texts,
    "rows.prompt": st.sampled_from(["", "question"]),
    "rows.answer": st.sampled_from(["", "answer"]),
    "rows.workflow": st.sampled_from(["math", "my_own"]),
    "mesh.max_model_len": st.integers(256, 41_000).map(str),
    "mesh.max_tokens": st.integers(1, 300).map(str),
    "coordinator.batch_size": st.integers(1, 60_000).map(str),
    "coordinator.group_size": st.integers(1, 1025).map(str),
    "trainer.advantage": st.sampled_from(["grpo", "gae", "remax"]),
    "trainer.learning_rate": st.floats(min_value=0).map(str),
    "coordinator.max_staleness": st.integers(0, 5).map(str),
    "trainer.total_steps": st.integers(1, 100).map(str),
    "trainer.checkpoint_dir": _texts,
    "hardware.trainer_gpus": st.integers(0, 9).map(str),
    "hardware.explorer_gpus": st.integers(0, 9).map(str),
    "hardware.gpu_gib": st.integers(40, 200).map(str),
}
"""What may be answered, by field."""


def random_answers() -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional=ANSWERS)
