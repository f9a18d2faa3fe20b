"""What sections are made of: their base, their names in the environment, and kinds of values."""

import difflib
import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, LiteralString

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo, ValidatorFunctionWrapHandler

from schemas.record import Identifier

ENV_PREFIX = "TRINITY_BUS_"
ENV_DELIMITER = "__"
FILE_SUFFIX = "_FILE"
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"  # names the settings file
MIN_KEY_CHARS = 16  # of what somebody is let in by
_PORTS = re.compile(r"^(\d{1,5})(?:-(\d{1,5}))?$")
# A zone (``%eth0``) says by which of its interfaces a machine reaches a link-local address.
_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[^\s:,\[\]]+):(\d{1,5})")


def env_name(path: str) -> str:
    """Return the environment variable of a setting: ``"mesh.namespace"`` gives ``"TRINITY_BUS_MESH__NAMESPACE"``."""
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()


def at_home(path: str | Path) -> Path:
    """Return a path with the home of ``~`` or ``~user``; as it is where there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises there


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _read(cls, value: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        # An empty text is no value, as in a variable: as a path it would be the working folder. No shell expands the
        # paths of a file, or of what compose and systemd pass on.
        field = cls.model_fields[str(info.field_name)]
        found = read(field.get_default(call_default_factory=True) if value == "" else value)
        return at_home(found) if isinstance(found, Path) else found


CONFLICT = "conflicting_settings"


def conflict(text: str) -> PydanticCustomError:
    """Return the error of settings that contradict each other."""
    # The text names settings by their places, such as ``kafka.sasl_password``: they are told with where they come from.
    return PydanticCustomError(CONFLICT, "{text}", {"text": text})


def _existing_file(path: Path) -> Path:
    if not at_home(path).is_file():
        raise PydanticCustomError("no_such_file", "no such file; give the path of a readable file")
    return path


def _local(value: object) -> object:
    # As a path it would be a folder of that name.
    if "://" in str(value):
        raise PydanticCustomError("no_folder", "expected a folder of this machine; trainer.checkpoint_url takes a URL")
    return value


def _server(value: str, *, expected: LiteralString = "expected host:port") -> str:
    match = _SERVER.fullmatch(value)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise PydanticCustomError("bad_server", expected)
    return value


def _servers(value: str) -> str:
    expected: LiteralString = "expected host:port, several separated by commas"
    # As Java's clients do, commas with nothing between them are passed over.
    named = [one for server in value.split(",") if (one := server.strip())] or [""]
    return ",".join(_server(one, expected=expected) for one in named)


def _port_range(value: str) -> str:
    match = _PORTS.match(value)
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
    if not first <= last < 1 << 16 or (first == 0 and last != 0):
        raise PydanticCustomError("bad_ports", "expected a port, or a range such as 7000-7009")
    return value


def _named_host(value: object) -> object:
    return value.replace("{host}", socket.gethostname()) if isinstance(value, str) else value


def ports_of(value: str) -> range:
    first, _, last = value.partition("-")
    return range(int(first), int(last or first) + 1)


type ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
type Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type Count = Annotated[int, Field(ge=1)]
# of what is multiplied with other sizes, and has to stay a number that can be told
type Size = Annotated[int, Field(ge=1, le=1 << 30)]
type InstanceName = Annotated[Identifier, BeforeValidator(_named_host)]
type HostName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\s/]+$"), BeforeValidator(_named_host)]
type Server = Annotated[str, AfterValidator(_server)]
# of fsspec; credentials and options are the business of its libraries
type ObjectUrl = Annotated[str, Field(max_length=1024, pattern=r"^[a-z][a-z0-9]*://[^\s?#@*\[\]]+$")]
type LocalFolder = Annotated[Path, BeforeValidator(_local)]
type Servers = Annotated[str, AfterValidator(_servers)]
type PortRange = Annotated[str, AfterValidator(_port_range)]

type Options = Annotated[dict[str, JsonValue], Field(max_length=64)]  # arguments of somebody else's, passed through


def without(refused: Mapping[tuple[str, ...], str]) -> AfterValidator:
    """Return what refuses options that would break what the mesh promises: why, by their names."""

    # A name that ends with an underscore is what names begin with.
    def check(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for names, why in refused.items():
            for option in given:
                if option in names or option.startswith(tuple(name for name in names if name.endswith("_"))):
                    raise PydanticCustomError(
                        "refused_option", "{option} cannot be set: {why}", {"option": option, "why": why}
                    )
        return given

    return AfterValidator(check)


def nearest(name: str, known: Sequence[str], *, delimiter: str = ".", prefix: str = "") -> str:
    """Return the end of a message that names the known setting nearest to one that is not; empty if none is near."""
    last = name.rpartition(delimiter)[2]
    # What lies in another section, before what only looks alike.
    close = [other for other in known if other.rpartition(delimiter)[2] == last]
    close += difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def unknown_options(given: Iterable[str], known: Collection[str]) -> str | None:
    """Return what is wrong with the first option that is none of those that are known; None where all are."""
    return next((f"{option} is none{nearest(option, list(known))}" for option in given if option not in known), None)
