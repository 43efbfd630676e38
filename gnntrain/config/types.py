"""The building blocks of the schema: a strict base class, value types, and their description."""

from __future__ import annotations

import os
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A frozen group of keys. Unknown keys, `true` for a number and 1.5 for an integer fail."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True)
class Expected:
    """Says in words what a type accepts, where its annotation alone does not."""

    text: str


def _number_of_text(value: object) -> object:
    # YAML 1.1 reads 1e-3 as text.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def text_of_number(value: object) -> object:
    """A number as text, anything else as it is: `run.name=2024` is a name."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def _tuple_of_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - no symlink resolved


def _folder_name(name: str) -> str:
    if "/" in name or "\\" in name or name in (".", "..", "latest"):
        raise ValueError
    return name


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError
    return value


Number = Annotated[float, BeforeValidator(_number_of_text)]
"""A finite number; also as text, since YAML reads `1e-3` as text."""

Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, lt=1)]
OneOrMore = Annotated[int, Field(ge=1, lt=2**62), Expected("an integer >= 1")]
ZeroOrMore = Annotated[int, Field(ge=0, lt=2**62), Expected("an integer >= 0")]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("an integer from 0 to 2^63 - 1")]

Text = Annotated[str, BeforeValidator(text_of_number), Field(min_length=1)]
"""Text that is not empty; numbers become text."""

PathText = Annotated[
    str,
    BeforeValidator(text_of_number),
    Field(min_length=1),
    AfterValidator(_absolute),
    Expected("a path"),
]
"""A path, made absolute: a run's configuration means the same from any folder."""

FolderName = Annotated[
    str,
    BeforeValidator(text_of_number),
    Field(min_length=1),
    AfterValidator(_folder_name),
    Expected("a folder's name (no slash, not latest)"),
]

FanOuts = Annotated[
    tuple[Annotated[int, Field(ge=-1, lt=2**31), AfterValidator(_not_zero)], ...],
    BeforeValidator(_tuple_of_list),
    Field(min_length=1),
    Expected("a list of integers, each >= 1 or -1 (all)"),
]
"""In-neighbours a node, the hop next to the seeds first; -1 takes all."""


def expected(field: FieldInfo) -> str:
    """What `field` accepts, in words: type and range."""
    return _in_words(field.annotation, field.metadata)


def _in_words(annotation: Any, metadata: list[Any]) -> str:
    for item in metadata:
        if isinstance(item, Expected):
            return item.text
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _in_words(inner, [*_flat(more), *metadata])
    if origin in (Union, types.UnionType):
        parts = [_in_words(part, metadata) for part in get_args(annotation)]
        return " or ".join(dict.fromkeys(parts))
    if origin is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "keys"
    if annotation is type(None):
        return "null"
    return _NAMES.get(origin or annotation, "a value") + _range_in_words(metadata)


_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
}


def _flat(metadata: list[Any]) -> list[Any]:
    """Metadata of a type, with that of `Field(...)` unpacked."""
    return [
        item
        for entry in metadata
        for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])
    ]


def _range_in_words(metadata: list[Any]) -> str:
    bounds = [
        f"{sign} {getattr(item, attribute)}"
        for item in metadata
        for kind, sign, attribute in _BOUNDS
        if isinstance(item, kind)
    ]
    return "" if not bounds else " " + " and ".join(bounds)


_BOUNDS = ((Ge, ">=", "ge"), (Gt, ">", "gt"), (Le, "<=", "le"), (Lt, "<", "lt"))
