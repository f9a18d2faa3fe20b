import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from schemas.codec import RECORDS
from schemas.topics import TOPICS
from tools import render_asyncapi

DOCUMENT = render_asyncapi.document()


def test_it_is_the_same_in_another_process() -> None:
    script = "import sys; from tools.render_asyncapi import render; sys.stdout.buffer.write(render().encode())"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert other.decode() == render_asyncapi.render()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_every_reference_leads_somewhere() -> None:
    document = yaml.safe_load(render_asyncapi.render())
    for reference in set(references(document)):
        node = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_every_topic_and_record_is_in_it_and_fields_carry_their_docstrings() -> None:
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == {
        f"{{namespace}}.{topic.name}" for topic in TOPICS
    }
    assert {cls.SCHEMA for cls in RECORDS} <= {
        message["name"] for message in DOCUMENT["components"]["messages"].values()
    }
    task = DOCUMENT["components"]["schemas"]["Task"]
    assert task["properties"]["workflow"]["description"].startswith("The name of a workflow")
    assert task["required"][:2] == ["schema", "schema_version"]
    assert "schema" not in DOCUMENT["components"]["schemas"]["TaskJson"]["required"]
