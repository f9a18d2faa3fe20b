"""What a demo teaches, and what a user may choose of it: a model, tasks, and what differs in their training.

=======  ============================================================  ================================================
subject  what the model is to do                                       what it is rewarded for
=======  ============================================================  ================================================
copy     say three digits again                                        each word in its place (``sequence``)
tools    look into a drawer, then into that whose number was in it     each word of each call (``trail``)
sums     add two numbers of two digits                                 the right number (``math``)
=======  ============================================================  ================================================

A subject brings its tasks as JSON lines in ``tasks``: some to learn from, others to be tested with, no prompt in both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.demo.model import DIGITS, Language

CONSOLE_PORT: Final = 8900  # Where the console listens, where nobody else does
BATCH_SIZE: Final = 64  # Tasks a step
MAX_STEPS: Final = 100
OPEN: Final = "<tool_call><function=look><parameter=drawer>"
# With ``OPEN`` what surrounds the number of a drawer: to the demo's model a token each, and this one ends its turn
CLOSE: Final = "</parameter></function></tool_call>"
# Schemas of tools are left out: a model that knows no word cannot read them
_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %} <{{ message.role }}>"
    "{% if message.content %} {{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %} <tool_call><function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments.items() %}<parameter={{ name }}> {{ value }} </parameter>"
    "{% endfor %}</function></tool_call>{% endfor %}"
    "{% if message.role == 'assistant' %} {{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSubject:
    name: str
    language: Language | None = None  # Of a model of random weights. None: ``SMOLLM2`` is taught.
    tasks: str  # What the names of the files of its tasks begin with
    max_tokens: int  # Of a response
    entropy_coef: float = 0.0
    # Of batches, from which on it is worth a check whether the model has learned it, see ``lesson``. None: it is
    # taught for all its steps.
    reward_up: float | None = None
    batch_size: int = BATCH_SIZE
    explorers: int = 2
    steps: int = MAX_STEPS  # Most steps of training
    learned: float = 0.99  # Share of held-out prompts that a trained model answers exactly, at least
    limit_s: float = 300.0  # What the whole may take, on two cores
    settings: Mapping[str, object] = field(default_factory=dict)  # In place of those that demos have in common
    module: str | None = None  # Registers its workflow, where that is not one of the project's
    try_it: str  # A command that asks the trained model, with places for ``program`` and ``model``


COPY: Final = DemoSubject(
    name="copy",
    language=DIGITS,
    tasks="",
    # Three digits and the end.
    max_tokens=4,
    entropy_coef=0.005,
    reward_up=0.98,
    try_it='{program} ask "copy 3 1 4 =" --model {model}',
)

TOOLS: Final = DemoSubject(
    name="tools",
    language=Language(
        words=("<user>", "<tool>", "<assistant>", OPEN, CLOSE, *"0123456789"),
        chat_template=_TEMPLATE,
        # As in gpt-oss, whose <|call|> ends a turn. With a mark to be said after it, that of the second turn died out
        # with seed 1: it was the last word of all to be rewarded.
        ends=(CLOSE,),
    ),
    tasks="tools_",
    # A call: its beginning, three digits, its end, which is that of the turn.
    max_tokens=5,
    # With 0.005 the second turn comes too late; with 0.02 one seed in two lost a digit before it could be copied, and
    # what is never said is never learned.
    entropy_coef=0.05,
    # So much entropy leaves a draw in forty wrong where what is likeliest is right.
    reward_up=0.95,
    module="workers.demo.trail",
    try_it="""{program} workflow run workers.demo.trail --task '{{"prompt": "3 1 4"}}' --engine {model}""",
)

SUMS: Final = DemoSubject(
    name="sums",
    tasks="sums_",
    max_tokens=8,
    # Many sums and few samples of each: a group whose samples are all right, or all wrong, costs the trainer nothing.
    batch_size=64,
    explorers=1,
    steps=17,
    learned=0.6,
    limit_s=900.0,
    settings={
        "mesh.max_model_len": 128,
        "coordinator.group_size": 4,
        "explorer.cpu_threads": 2,
        # Of the held-out sums so many at once: a decoding step reads all weights, however few it is for.
        "explorer.slots": 64,
        # Each takes 1.2 MB of logits.
        "explorer.max_num_seqs": 128,
        # Half of a batch at once, whose prompts are shared.
        "explorer.cpu_kvcache_gib": 0.25,
        # All weights learn as fast, and the trainer takes 2 GiB more.
        "trainer.lora_rank": 32,
        "trainer.learning_rate": 2e-4,
        "trainer.warmup_steps": 0,
        # At a constant rate it lost up to a tenth of its answers from one step to the next.
        "trainer.decay_steps": 18,
        "trainer.mini_batches": 4,
        "trainer.micro_batch_tokens": 512,
        "trainer.threads": 2,
        "trainer.bucket_mib": 16,
    },
    try_it='{program} ask --system "2 + 3" "= 5" "41 + 35" --model {model}',
)

SUBJECTS: Final = {subject.name: subject for subject in (COPY, TOOLS, SUMS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    run_dir: Path
    subject: DemoSubject = COPY
    seed: int = 0
    steps: int = MAX_STEPS  # Most steps of training
    explorers: int = 2
    max_staleness: int = 0  # 0: strictly on-policy; 1: one step off
    early_stop: bool = True  # End when the model has learned, see ``lesson``
    limit_s: float = COPY.limit_s  # Give up after this many seconds
    console_port: int = CONSOLE_PORT  # Where the console listens
    pretrained: Path | None = None  # The model that is taught. None: one of random weights.

    @property
    def model_dir(self) -> Path:
        return self.pretrained or self.run_dir / "initial-model"

    @property
    def mesh_file(self) -> Path:
        return self.run_dir / "mesh.toml"

    @property
    def checkpoint_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @property
    def explorer_names(self) -> list[str]:
        return [f"explorer-{i}" for i in range(self.explorers)]
