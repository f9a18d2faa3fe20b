"""The compose files as data, for tests that need no Docker."""

import copy
import re
from pathlib import Path
from typing import Any

import yaml

from trinity_bus.bus.administration.access import USERS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "docker-compose"
FILES = sorted(FOLDER.glob("compose*.yaml"))
DEFAULTS = dict(
    line.split("=", 1) for line in (FOLDER / ".env").read_text().splitlines() if line and not line.startswith("#")
)
VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")
MADE = {f"{user.upper()}_PASSWORD" for user in USERS} | {
    "CA_CERTIFICATE",
    *("KAFKA_CERTIFICATE", "KAFKA_KEY", "ROOT_CERTIFICATE", "ROOT_KEY"),
}
"""Variables that secure.sh gives values to."""
GIVEN = {"MODEL_DIR"}
"""Variables that have no default, because only the user knows."""
ONE_SHOTS = {"topics", "model", "access"}
"""They do one thing and end."""
SPEECHLESS = {"otel-collector"}
"""Their image holds one program and nothing that could ask it; Prometheus asks from outside."""


def parsed(path: Path) -> dict[str, Any]:
    found = yaml.load(path.read_text(), Loader)  # noqa: S506 - a safe loader, below
    assert isinstance(found, dict)
    return found


class Loader(yaml.SafeLoader):
    """Knows compose's own tags, which say how one file replaces another's parts; refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        # What is merged in stands in front of what replaces it, once this has run before.
        assert not twice or getattr(node, "merged", False), f"twice in one place: {', '.join(twice)}"
        node.merged = True  # type: ignore[attr-defined]
        return super().construct_mapping(node, deep=deep)


for tag in ("!override", "!reset"):
    Loader.add_constructor(tag, lambda loader, node: loader.construct_object(_untagged(loader, node), deep=True))


def _untagged(loader: Any, node: yaml.Node) -> yaml.Node:
    plain = copy.copy(node)
    plain.tag = loader.resolve(type(node), node.value, (True, False))
    return plain


def filled(text: str, **changed: str) -> str:
    """With the variables of ``.env``, but for those that are changed."""
    return VARIABLE.sub(lambda match: (DEFAULTS | changed)[match[1]], text)


def services() -> list[tuple[str, str, dict[str, Any]]]:
    base = parsed(FOLDER / "compose.yaml")["services"]
    return [
        (path.name, name, service)
        for path in FILES
        for name, service in parsed(path).get("services", {}).items()
        if path.name == "compose.yaml" or name not in base
    ]
