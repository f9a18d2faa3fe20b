"""What all sections have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


CONFLICT = "conflicting_settings"


def conflict(text: str) -> PydanticCustomError:
    """Return the error of settings that contradict each other."""
    # The text names settings by their places, such as ``kafka.sasl_password``: they are told with where they come from.
    return PydanticCustomError(CONFLICT, "{text}", {"text": text})
