"""Items: the small things that a record may hold thousands of, such as the entries of a manifest.

A msgspec ``Struct`` each, because a pydantic model takes a microsecond and half a KiB, and a batch has tens of
thousands of them. Their rules are checked while they are read. Whoever makes one in Python is believed.
"""

from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from schemas.record import IDENTIFIER_PATTERN, MAX_COUNT, MAX_ID_LENGTH, MAX_VERSION

# ``schemas.record.Identifier``
type Name = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=IDENTIFIER_PATTERN)]
type Number = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
type AtLeastOne = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
type DrawnBy = Annotated[int, Meta(ge=-1, le=MAX_VERSION)]


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all items: at home in a pydantic model, as a field or in a list.

    A field that has its default is not written.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._read, serialization=core_schema.plain_serializer_function_ser_schema(_itself)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # The list's JSON schema, with those of the items inside it.
        return described(cls)

    @classmethod
    def _read(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise PydanticCustomError(_kind(str(error)), "{problem}", {"problem": str(error)}) from error


def _itself(item: Item) -> Item:
    # ``schemas.codec.plain`` writes it without making a map of it.
    return item


def _kind(problem: str) -> Any:
    # Pydantic's name for what is wrong, as far as a reader of records tells them apart.
    if "missing required field" in problem:
        return "item_missing"
    wrong_type = problem.startswith("Expected `") and not any(sign in problem for sign in (">=", "<=", "matching"))
    return "item_type" if wrong_type else "item_value"


def described(cls: type[Item]) -> dict[str, Any]:
    """Return the JSON schema of an item, items inside it written out."""
    _, components = msgspec.json.schema_components((cls,), ref_template="{name}")

    def inlined(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inlined(components[node["$ref"]])
            return {key: inlined(child) for key, child in node.items()}
        return [inlined(child) for child in node] if isinstance(node, list) else node

    schema: dict[str, Any] = inlined(components[cls.__name__])
    return schema
