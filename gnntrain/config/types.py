"""The types of the schema's values, with their ranges."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core.core_schema import with_info_after_validator_function

from gnntrain.plugins import plugin_names

JSON = dict[str, Any]
"""Plain data by name."""

AnyFanOuts = Sequence[int] | Mapping[str, Sequence[int]]
"""In-neighbours a node by hop, of all edge types or by edge type: see `TypedFanOuts`."""


def flattened(values: Mapping[str, Any], prefix: str = "") -> JSON:
    """Nested mappings by dotted key; an empty mapping is a value."""
    flat: JSON = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def one_of(builtin: Callable[[], Sequence[str]], group: str) -> GetPydanticSchema:
    """Text that is a name of a registry: `backend: Annotated[str, one_of(backends, SAMPLERS)]`.

    The names are looked up when a value is judged, so that nothing is imported to declare a key. Of
    a saved configuration every name passes: the package that offered it may have gone since.

    Args:
        builtin: gnntrain's own names, which come first.
        group: The entry points by which other packages offer more.
    """

    def names() -> list[str]:
        return list(dict.fromkeys((*builtin(), *plugin_names(group))))

    def judge(name: str, info: ValidationInfo) -> str:
        if not (info.context or {}).get("saved") and name not in names():
            raise ValueError
        return name

    return GetPydanticSchema(
        lambda kind, handler: with_info_after_validator_function(judge, handler(kind)),
        lambda _, __: {"enum": names()},
    )


def described(text: str) -> WithJsonSchema:
    """Says what a type accepts where its JSON schema does not."""
    return WithJsonSchema({"description": text})


def plain(value: Any) -> Any:
    """Plain data: numbers and lists in place of NumPy's, texts in place of paths and of keys."""
    if hasattr(value, "dtype"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def _number_of_text(value: object) -> object:
    with suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  # resolves no symlink


def _below_root(file: object, info: ValidationInfo) -> object:
    if isinstance(file, str) and file and not file.startswith("~"):
        return os.path.join(info.data.get("root") or "", file)  # noqa: PTH118
    return file


NUMBER = BeforeValidator(_number_of_text)
"""Takes a number as text too, since YAML reads `1e-3` as text."""

Positive = Annotated[float, Field(gt=0), NUMBER]
NonNegative = Annotated[float, Field(ge=0), NUMBER]
Share = Annotated[float, Field(ge=0, lt=1), NUMBER]
Ratio = Annotated[float, Field(ge=0, le=1), NUMBER]
OneOrMore = Annotated[int, Field(ge=1, lt=2**62), described("an integer >= 1")]
ZeroOrMore = Annotated[int, Field(ge=0, lt=2**62), described("an integer >= 0")]
Seed = Annotated[int, Field(ge=0, lt=2**63), described("an integer from 0 to 2^63 - 1")]

Text = Annotated[str, Field(min_length=1, strict=False, coerce_numbers_to_str=True)]
"""Text that is not empty; numbers become text: `run.name=2024` is a name."""

PathText = Annotated[Text, AfterValidator(_absolute), described("a path")]
"""A path, made absolute: a run's configuration means the same from any folder."""

FileText = Annotated[PathText, BeforeValidator(_below_root)]
"""A path that is relative to the section's key `root`, where that is given."""

FolderName = Annotated[
    Text,
    Predicate(lambda name: not {*name} & {*"/\\"} and name not in (".", "..", "latest")),
    described("a folder's name (no slash, not latest)"),
]

NoOptions = Annotated[JSON, Field(max_length=0), described("{}: it has no options")]

Names = Annotated[
    tuple[Text, ...],
    Field(strict=False),  # a list will do
    BeforeValidator(lambda value: (value,) if isinstance(value, str | int) else value),
    described("a list of names or patterns"),
]
"""Names of columns; patterns with `*` and `?` too. One name alone is a list of one."""

Missing = Literal["refuse", "mean", "zero", "indicator"]
"""What to do about a missing feature."""

Ratios = Annotated[
    tuple[NonNegative, NonNegative, NonNegative],
    Field(strict=False),
    Predicate(lambda shares: abs(sum(shares) - 1) <= 1e-6 and shares[0] > 0),
    described("three numbers >= 0 that sum to 1, the first > 0"),
]
"""Shares of train, val and test."""

FanOuts = Annotated[
    tuple[Literal[-1] | Annotated[int, Field(ge=1, lt=2**31)], ...],
    Field(strict=False, min_length=1),
    described("a list of integers, each >= 1 or -1 (all)"),
]
"""In-neighbours a node, the hop next to the seeds first; -1 takes all."""

TypedFanOuts = Annotated[
    FanOuts | Annotated[dict[str, FanOuts], Field(min_length=1)],
    described("a list of integers >= 1 or -1 (all), or one by edge type"),
]
"""The same fan-outs for all edge types; or by edge type, and `default` for all others. An edge type
is `author/writes/paper` or the relation alone, `writes`."""
