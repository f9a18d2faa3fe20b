"""The AsyncAPI document of the mesh, made from the record types and the topic table.

``python -m tools.render_asyncapi`` writes ``docs/asyncapi.yaml``; with ``--check`` it says whether the file is current
and exits with 1 where it is not. The same types give the same bytes. Needs PyYAML, which nothing else here does.
"""

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schemas import topic as headers
from schemas.codec import RECORDS
from schemas.codec.columns import GroupHeader
from schemas.experience import ExperienceGroup
from schemas.fields.free_form import MAX_CONTAINERS, MAX_DEPTH, MAX_ITEMS
from schemas.groups.column import COLUMNS, OPTIONAL_COLUMNS
from schemas.groups.group_rules import IDENTIFIERS
from schemas.record import Record
from schemas.task import Task
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS, COORDINATOR_STATE, DEAD_LETTERS, TASKS, TOPICS
from tools.generated import write_or_check

PATH = Path(__file__).parent.parent / "docs" / "asyncapi.yaml"
CONTRACT_VERSION = "1.2.0"
"""Minor: something optional was added. Major: a record type has a new major version."""
_BINDING = "0.5.0"
_REF = "#/components/schemas/{}"
_TOPIC_CONFIGURATION = ("retention.ms", "retention.bytes", "delete.retention.ms", "max.message.bytes")
"""What AsyncAPI's Kafka binding has names for, besides the clean-up policy."""

_GENERATED = "# Generated from the types by `python -m tools.render_asyncapi`; do not edit.\n"
_INTRODUCTION = f"""\
Reinforcement fine-tuning of language models over Apache Kafka. Producers write `tasks`; the topics `results` and
`batches` have the outcomes, and `experiences` has every sample.

Records are msgpack maps with the keys `schema` and `schema_version` (the major version); experiences are a msgpack
array of such a map and one binary. Tasks and examples may be JSON, and may then omit these two keys. Readers ignore
unknown fields and refuse unknown major versions. Absent fields have the documented default; omit a field to write null.
An array or map has at most {MAX_ITEMS} entries, a record at most {MAX_CONTAINERS} arrays and maps, free-form data at
most {MAX_DEPTH} levels.
"""


def document() -> dict[str, Any]:
    """Return the AsyncAPI 3.0.0 document as plain data."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Trinity Bus",
            "version": CONTRACT_VERSION,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": headers.MSGPACK,
        "servers": {
            "kafka": {
                "host": "{bootstrap_servers}",
                "protocol": "kafka",
                "description": "Any Kafka cluster, with its TLS and SASL settings.",
                "variables": {"bootstrap_servers": {"default": "127.0.0.1:9092"}},
            }
        },
        "channels": {_camel(topic.name): _channel(topic) for topic in TOPICS},
        "operations": dict(operation for topic in TOPICS for operation in _operations(topic)),
        "components": {
            "parameters": {
                "namespace": {"description": "Separates meshes that share a cluster.", "default": "trinity"},
            },
            "messages": _messages(),
            "schemas": _schemas(),
        },
    }


def render() -> str:
    """Return the document as YAML, the same for the same types."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise SystemExit("The AsyncAPI document is written with PyYAML: install pyyaml and try again.") from error

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as it reads."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Dumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    text: str = yaml.dump(document(), Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)
    return _GENERATED + text


def _camel(name: str) -> str:
    first, *rest = name.replace(".", "-").replace("_", "-").split("-")
    return first + "".join(word.capitalize() for word in rest)


def _message_names(topic: Topic) -> list[str]:
    if topic in ALL_DEAD_LETTERS:
        return [_camel(DEAD_LETTERS.name)]
    if topic == COORDINATOR_STATE:
        return [_camel(topic.name)]
    names = [_camel(cls.SCHEMA) for cls in topic.records if cls in RECORDS]
    return [*names, "taskJson"] if topic == TASKS else names


def _channel(topic: Topic) -> dict[str, Any]:
    config = topic.config()
    standard = {name: int(config.pop(name)) for name in _TOPIC_CONFIGURATION if name in config}
    policy = config.pop("cleanup.policy")
    return {
        "address": f"{{namespace}}.{topic.name}",
        "description": topic.description,
        "parameters": {"namespace": {"$ref": "#/components/parameters/namespace"}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _message_names(topic)},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions,
                "topicConfiguration": {"cleanup.policy": [policy], **standard},
                "bindingVersion": _BINDING,
            }
        },
        "x-kafka-configuration": config,
    }


def _operations(topic: Topic) -> list[tuple[str, dict[str, Any]]]:
    channel = _camel(topic.name)
    messages = [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in _message_names(topic)]
    return [
        (
            f"{role}.{action}.{topic.name}",
            {
                "action": action,
                "channel": {"$ref": f"#/channels/{channel}"},
                "summary": f"{role.capitalize()} {'writes' if action == 'send' else 'reads'} {topic.name}.",
                "tags": [{"name": role}],
                "messages": messages,
            },
        )
        for action, roles in (("send", topic.writers), ("receive", topic.readers))
        for role in roles
    ]


def _messages() -> dict[str, Any]:
    messages = {}
    for topic in TOPICS:
        for cls in topic.records:
            if cls in RECORDS:
                messages[_camel(cls.SCHEMA)] = _message(
                    cls.SCHEMA,
                    _summary(cls),
                    key=topic.key,
                    content_type=headers.MSGPACK,
                    payload=cls.__name__,
                    header_schema="EventHeaders" if topic.cloud_events else "RecordHeaders",
                )
    messages["taskJson"] = _message(
        "task", "The same as JSON, typed by hand.", key=TASKS.key, content_type=headers.JSON, payload="TaskJson"
    )
    messages[_camel(DEAD_LETTERS.name)] = _message(
        DEAD_LETTERS.name,
        DEAD_LETTERS.description,
        key=DEAD_LETTERS.key,
        content_type="application/octet-stream",
        payload="Raw",
        header_schema="DeadLetterHeaders",
    )
    messages[_camel(COORDINATOR_STATE.name)] = _message(
        COORDINATOR_STATE.name,
        COORDINATOR_STATE.description,
        key=COORDINATOR_STATE.key,
        content_type=headers.MSGPACK,
        payload="Private",
    )
    return messages


def _message(
    name: str, summary: str, *, key: str, content_type: str, payload: str, header_schema: str = "RecordHeaders"
) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "contentType": content_type,
        "headers": {"$ref": _REF.format(header_schema)},
        "payload": {"$ref": _REF.format(payload)},
        "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": _BINDING}},
    }


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _schemas() -> dict[str, Any]:
    plain = [cls for cls in RECORDS if issubclass(cls, Record)]
    _, joint = models_json_schema([(cls, "validation") for cls in plain], ref_template=_REF.format("{model}"))
    schemas: dict[str, Any] = joint["$defs"]
    for cls in _models(Record):
        if cls.__name__ in schemas:
            _describe(schemas[cls.__name__], cls)
    for cls in plain:
        schema = schemas[cls.__name__]
        schema["properties"] = _identity(cls) | schema["properties"]
        schema["required"] = ["schema", "schema_version", *schema.get("required", [])]
        schema["x-max-bytes"] = cls.MAX_BYTES
    task = schemas[Task.__name__]
    schemas["TaskJson"] = task | {"title": "TaskJson", "required": [*task["required"][2:]]}
    schemas |= _experience_schemas()
    common = {
        headers.CONTENT_TYPE: "The media type of the value. For information: the value itself tells its format.",
        headers.TRACEPARENT: "W3C trace context of the span that sent this record.",
        headers.TRACESTATE: "W3C trace state.",
    }
    event = {
        headers.CE_SPECVERSION: "CloudEvents' version: 1.0.",
        headers.CE_ID: "Of the event; a record that is written twice has the same.",
        headers.CE_SOURCE: "Namespace and topic: /trinity/results.",
        headers.CE_TYPE: "The record's schema with its major version: trinity-bus.task_result.v1.",
        headers.CE_TIME: "When it was written (RFC 3339).",
    }
    schemas["RecordHeaders"] = _headers_schema(common)
    schemas["EventHeaders"] = _headers_schema(common | event)
    schemas["DeadLetterHeaders"] = _headers_schema(
        {
            headers.DLQ_REASON: "One word for machines: why it was refused.",
            headers.DLQ_DETAIL: "One line for people.",
            headers.DLQ_TOPIC: "Where it came from, without the namespace.",
            headers.DLQ_PARTITION: "Its partition there.",
            headers.DLQ_OFFSET: "Its offset there.",
        }
        | event
    )
    schemas["DeadLetterHeaders"]["description"] = "In addition to the headers of the original record, without its ce_."
    schemas["Raw"] = {"type": "string", "format": "binary", "description": "The original value."}
    schemas["Private"] = {"type": "object", "description": "Private to the coordinator; not part of the contract."}
    return {name: schemas[name] for name in sorted(schemas)}


def _models(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [cls for sub in base.__subclasses__() for cls in (sub, *_models(sub))]


def _identity(cls: type[Record | ExperienceGroup]) -> dict[str, Any]:
    return {
        "schema": {"const": cls.SCHEMA, "type": "string"},
        "schema_version": {"const": cls.VERSION, "type": "integer", "description": "Major version of the schema."},
    }


def _headers_schema(descriptions: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in descriptions.items()},
    }


def _describe(schema: dict[str, Any], cls: type[BaseModel]) -> None:
    """Give the properties the docstrings that stand under the fields."""
    (definition,) = (node for node in ast.walk(ast.parse(inspect.getsource(cls))) if isinstance(node, ast.ClassDef))
    for field, text in pairwise(definition.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and field.target.id in schema["properties"]
        ):
            schema["properties"][field.target.id]["description"] = inspect.cleandoc(str(text.value.value))


def _experience_schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components((GroupHeader,), ref_template=_REF.format("{name}"))
    header = schemas[GroupHeader.__name__]
    header["title"] = "ExperienceHeader"
    header["description"] = "The samples' task, attempt and explorer, and the position of each column in the binary."
    properties = header["properties"]
    properties |= _identity(ExperienceGroup)
    for name in IDENTIFIERS:
        properties[name] = {"$ref": _REF.format("Identifier")}
    properties["metrics"]["description"] = "One map per sample, or empty."
    properties["finish_reasons"]["description"] = "One per sample, or empty: stop, length, ..."
    properties["padding"]["description"] = "Spaces that align the binary to a multiple of 8; optional."
    properties["buffers"] = {
        "type": "object",
        "description": "Column name to [dtype, shape, offset in the binary, nbytes]; numbers are little-endian and "
        "offsets multiples of 8. responses = sum(lengths - prompt_lengths); spans = stretches of tokens that one model "
        "version drew. Buffers of other names are to be ignored.",
        "required": [column.name for column in COLUMNS],
        "properties": {
            column.name: {
                "type": "array",
                "description": f"[{', '.join([column.length, *map(str, column.tail)])}] {column.meaning}",
                "items": [
                    {"const": column.dtype_name, "type": "string"},
                    {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 0},
                        "minItems": 1 + len(column.tail),
                        "maxItems": 1 + len(column.tail),
                    },
                    {"type": "integer", "minimum": 0, "multipleOf": 8},
                    {"type": "integer", "minimum": 0},
                ],
                "minItems": 4,
                "maxItems": 4,
            }
            for column in (*COLUMNS, *OPTIONAL_COLUMNS)
        },
    }
    group = {
        "title": ExperienceGroup.__name__,
        "description": _summary(ExperienceGroup),
        "type": "array",
        "items": [
            {"$ref": _REF.format("ExperienceHeader")},
            {"type": "string", "format": "binary", "description": "The columns, as the header's buffers say."},
        ],
        "minItems": 2,
        "maxItems": 2,
        "x-max-bytes": ExperienceGroup.MAX_BYTES,
    }
    return {"ExperienceGroup": group, "ExperienceHeader": header}


def main() -> int:
    about = (__doc__ or "").split("\n", 1)[0]
    return write_or_check("python -m tools.render_asyncapi", about, {PATH: render()})


if __name__ == "__main__":
    sys.exit(main())
