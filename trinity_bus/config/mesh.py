"""The section ``mesh``: what services have in common.

A service takes one section for each of its parts, and finds there what it shares with others: sections declare such
a setting with :func:`of_mesh`. It is set in ``mesh`` alone.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from schemas.record import Identifier
from trinity_bus.config.section import Section, conflict
from trinity_bus.config.values import Count, Size

type Namespace = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
type Mode = Literal["both", "explore", "train", "bench", "serve"]
type TemplateOptions = Annotated[dict[str, bool | int | float | str], Field(max_length=32)]
type Dtype = Literal["auto", "float32", "float16", "bfloat16"]

TAKES_PART: Final[Mapping[str, frozenset[Mode]]] = {
    "coordinator": frozenset(["both", "explore", "train", "bench", "serve"]),
    "explorer": frozenset(["both", "explore", "bench", "serve"]),
    "trainer": frozenset(["both", "train"]),
    "taskset": frozenset(["both", "explore", "bench"]),
    "gateway": frozenset(["both", "explore", "bench", "serve"]),
}
"""The modes in which each service takes part."""

MIN_RECORD_MIB = 5
"""A task has 4 at most, and the order to run it some KiB more."""
MAX_RECORD_MIB = 65
"""With it every topic takes the largest of its records."""


def computed_dtype(dtype: Dtype, *, on_cpu: bool) -> str:
    """Return in which type weights and activations are, by the setting and the device."""
    return ("float32" if on_cpu else "bfloat16") if dtype == "auto" else dtype


_OF_MESH: dict[str, Any] = {"of_mesh": True}


class MeshSettings(Section):
    """What services have in common: give all of them the same."""

    namespace: Namespace = "trinity"
    """Stands in front of every topic, group and transactional id, so that several runs can share a cluster."""
    model: Identifier = "policy"
    """Name of the model that is trained: the key of its versions."""
    mode: Mode = "both"
    """Which services take part. ``both``: explorers follow the trainer. ``explore``, ``bench`` and ``serve``: explorers
    have a fixed checkpoint, and there is no trainer; they draw experiences, evaluate, or only answer. ``train``: the
    trainer trains on what the log holds, and there are no explorers. See docs/pools.md."""
    model_path: str | None = None
    """The Hugging Face model that explorers and trainer start from: a folder, or its name on a model hub,
    ``organization/name`` or ``organization/name@revision``, which is fetched once and kept in ``HF_HOME``. Of a name on
    a hub, give the commit, so that all services have the same."""
    dtype: Dtype = "auto"
    """Of weights and activations, whatever the model's folder names. ``auto``: float32 on a CPU, bfloat16 on a GPU, for
    trainer and explorers alike (the optimizer keeps float32, and so does ``trainer.engine = "torch"``); explorers on
    GPUs that follow no trainer take what the folder names. The trainer does not train in float16, nor in bfloat16 on a
    CPU, where engines that compute in it crash on some processors. An explorer whose type is not the trainer's says so
    in its log."""
    max_model_len: Size = 1024
    """Longest prompt plus response, in tokens."""
    max_tokens: Count = 256
    """Longest response of tasks that name none, in tokens; less than ``max_model_len``."""
    chat_template_options: TemplateOptions = Field(default={})
    """Options of the model's chat template, such as ``{"enable_thinking": false}``: for prompts, conversations, agents,
    the gateway, and what explorers of other pools are asked. A request may have others (``chat_template_kwargs``).
    Examples that a trainer learns from are written without."""
    parse_special_tokens: bool = False
    """Whether special tokens (``<|im_end|>``) in what users and tools say are those tokens. Otherwise they are text, as
    other words are: a page that a tool reads cannot end its turn and begin another. See docs/workflows.md."""
    renderer: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Which renderer of the package ``renderers`` writes conversations, such as ``qwen3``. Unset: the model's chat
    template, unless ``model_path`` is a name that the package knows."""
    max_record_mib: Annotated[int, Field(ge=MIN_RECORD_MIB, le=MAX_RECORD_MIB)] = MAX_RECORD_MIB
    """Largest record that the cluster takes (its ``max.message.bytes``), in MiB; managed ones often take 8. Topics are
    made with it, groups that are larger are split over several records, and batches have 1024 tasks at most for each
    MiB but the first."""

    adapter_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """With ``trainer.lora_rank``: publish the adapter alone, of at most so many dimensions, and have explorers serve it
    beside the weights that they started with. 0: explorers get the merged weights, which cost nothing to serve."""

    @model_validator(mode="after")
    def _leaves_room_for_prompts(self) -> Self:
        if self.max_tokens >= self.max_model_len:
            raise conflict(
                f"mesh.max_tokens is {self.max_tokens}, which leaves no room for prompts: mesh.max_model_len is "
                f"{self.max_model_len}"
            )
        return self


def of_mesh(name: str) -> Any:
    """Return the field of a section that takes its value from ``mesh``.

    Args:
        name: The setting of ``mesh``.
    """
    return Field(default=MeshSettings.model_fields[name].default, json_schema_extra=_OF_MESH)


def is_of_mesh(field: FieldInfo) -> bool:
    """Tell whether a section takes this value from ``mesh``."""
    return field.json_schema_extra is _OF_MESH
