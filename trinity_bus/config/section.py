"""What all sections have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def missing(path: str, why: str) -> PydanticCustomError:
    """Return the error of a setting that is unset where another needs it.

    Args:
        path: Its place, such as ``"kafka.sasl_password"``.
        why: What needs it.
    """
    return PydanticCustomError("missing_setting", "{path} is not set: {why}", {"path": path, "why": why})
