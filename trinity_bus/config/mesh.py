"""The section ``mesh``: what services have in common.

A service takes one section for each of its parts, and finds there what it shares with others: sections declare such
a setting with :func:`of_mesh`. It is set in ``mesh`` alone.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from schemas.record import Identifier
from trinity_bus.config.values import Count, Section, Size, conflict

type Namespace = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
type Mode = Literal["both", "explore", "train", "bench", "serve"]
type TemplateOptions = Annotated[dict[str, bool | int | float | str], Field(max_length=32)]
type Dtype = Literal["auto", "float32", "float16", "bfloat16"]

# the modes in which each service takes part
TAKES_PART: Final[Mapping[str, frozenset[Mode]]] = {
    "coordinator": frozenset(["both", "explore", "train", "bench", "serve"]),
    "explorer": frozenset(["both", "explore", "bench", "serve"]),
    "trainer": frozenset(["both", "train"]),
    "taskset": frozenset(["both", "explore", "bench"]),
    "gateway": frozenset(["both", "explore", "bench", "serve"]),
}

MIN_RECORD_MIB = 5  # a task has 4 at most, and the order to run it some KiB more
MAX_RECORD_MIB = 65  # with it every topic takes the largest of its records


def computed_dtype(dtype: Dtype, *, on_cpu: bool) -> str:
    """Return in which type weights and activations are, by the setting and the device."""
    return ("float32" if on_cpu else "bfloat16") if dtype == "auto" else dtype


_OF_MESH: dict[str, Any] = {"of_mesh": True}


class MeshSettings(Section):
    """Common settings: use the same values for all services."""

    namespace: Namespace = "trinity"
    """Prefix of every topic, group and transactional id, so that several runs can share a cluster."""
    model: Identifier = "policy"
    """Name of the trained model: the key of its versions."""
    mode: Mode = "both"
    """Which services take part. ``both``: explorers follow the trainer. ``explore``, ``bench``, ``serve``: they serve a
    fixed checkpoint. ``train``: the trainer trains on what the log has. See docs/pools.md."""
    model_path: str | None = None
    """The initial Hugging Face model of explorers and trainer: a folder, or a name on a model hub,
    ``organization/name@revision``, which is downloaded once to ``HF_HOME``. Name the commit for all services."""
    dtype: Dtype = "auto"
    """Type of weights and activations. ``auto``: float32 on a CPU, bfloat16 on a GPU (the optimizer and
    ``trainer.engine = "torch"`` use float32); explorers on GPUs that follow no trainer use the model folder's. bfloat16
    on a CPU needs AVX512_BF16 or AMX. The trainer does not train in float16."""
    max_model_len: Size = 1024
    """Longest prompt plus response, in tokens."""
    max_tokens: Count = 256
    """Longest response of tasks that set none, in tokens; less than ``max_model_len``."""
    chat_template_options: TemplateOptions = Field(default={})
    """Options of the model's chat template, such as ``{"enable_thinking": false}``, for everything except the trainer's
    examples. A request may override them (``chat_template_kwargs``)."""
    parse_special_tokens: bool = False
    """Whether special tokens (``<|im_end|>``) in user messages and tool results are special tokens. By default they are
    text, so that a page that a tool reads cannot end its turn. See docs/workflows.md."""
    renderer: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Renderer of the package ``renderers`` for conversations, such as ``qwen3``. Unset: the model's chat template,
    unless the package knows the name in ``model_path``."""
    max_record_mib: Annotated[int, Field(ge=MIN_RECORD_MIB, le=MAX_RECORD_MIB)] = MAX_RECORD_MIB
    """Largest record that the cluster accepts (its ``max.message.bytes``), in MiB; often 8 on managed clusters. Larger
    groups are split over several records, and a batch may have 1024 tasks for each MiB except the first."""

    adapter_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """With ``trainer.lora_rank``: publish only the adapter, of at most this rank, and let explorers serve it beside
    their initial weights. 0: explorers get the merged weights, which cost nothing to serve."""

    @model_validator(mode="after")
    def _leaves_room_for_prompts(self) -> Self:
        if self.max_tokens >= self.max_model_len:
            raise conflict(
                f"mesh.max_tokens is {self.max_tokens}, which leaves no room for prompts: mesh.max_model_len is "
                f"{self.max_model_len}"
            )
        return self


def of_mesh(name: str) -> Any:
    """Return the field of a section that takes its value from a setting of ``mesh``."""
    return Field(default=MeshSettings.model_fields[name].default, json_schema_extra=_OF_MESH)


def is_of_mesh(field: FieldInfo) -> bool:
    return field.json_schema_extra is _OF_MESH
