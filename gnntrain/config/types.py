"""The building blocks of the schema: a strict base class, value types, and their description."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.synonyms import synonym
from gnntrain.plugins import plugin_names


class Section(BaseModel):
    """A frozen group of keys. Unknown keys, `true` for a number and 1.5 for an integer fail.

    Raises:
        ConfigError: With every mistake.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    if not TYPE_CHECKING:  # it has the keys of the section that is made

        def __init__(self, /, **keys: Any) -> None:
            try:
                super().__init__(**keys)
            except ValidationError as error:
                places = dict.fromkeys(entry["loc"] for entry in error.errors())
            else:
                return
            raise ConfigError(_wrong_argument(type(self), keys, *at) for at in places)

        # As pydantic marks its own: sections within others are made without it, so that what is
        # wrong in them is told with its place in the whole.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def public_name(cls) -> str:
        """Name of the class that users call to make this section."""
        return cls.__name__

    def changed(self, **changes: Any) -> Self:
        """A copy with other values, judged as those of a new section are.

        Args:
            changes: Values by key. A mapping changes these keys of a section and keeps its others:
                `config.changed(trainer={"lr": 0.003})`.

        Raises:
            ConfigError: With every mistake.
        """
        values = {key: self._changed(key, value) for key, value in changes.items()}
        return type(self)(**{**dict(self), **values})

    def _changed(self, key: str, value: object) -> object:
        section = getattr(self, key, None)
        if isinstance(section, Section) and isinstance(value, Mapping):
            return section.changed(**value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            [
                Problem(
                    f"{self.public_name()}.{name}",
                    shown(value),
                    "no change: a configuration is frozen",
                    f"make a changed copy: config.changed(section={{'{name}': {value!r}}})",
                )
            ]
        )


@dataclass(frozen=True)
class Expected:
    """Says in words what a type accepts, where its annotation alone does not."""

    text: str


@dataclass(frozen=True)
class Divides:
    """The key's value must divide the value of another key of its section.

    Attributes:
        key: The other key.
    """

    key: str


@dataclass(frozen=True)
class OneOf:
    """Text that is a name of a registry: `backend: Annotated[str, OneOf(backends, SAMPLERS)]`.

    The names are looked up when a value is judged, so that nothing is imported to declare a key.
    With the validation context `{"saved": True}` every name passes: the package that offered it
    may have gone since.

    Attributes:
        builtin: Returns gnntrain's own names.
        group: Entry-point group in which other packages offer more.
    """

    builtin: Callable[[], Sequence[str]]
    group: str | None = None

    def names(self) -> tuple[str, ...]:
        """All names there are, gnntrain's own first."""
        offered = () if self.group is None else plugin_names(self.group)
        return tuple(dict.fromkeys((*self.builtin(), *offered)))

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The text's own schema, and after it the look-up."""
        return core_schema.with_info_after_validator_function(self._judge, handler(source))

    def _judge(self, name: str, info: ValidationInfo) -> str:
        is_saved = bool(info.context and info.context.get("saved"))
        if not (is_saved or name in self.builtin() or name in self.names()):
            raise ValueError
        return name


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


def _tuple_of_names(value: object) -> object:
    return (value,) if isinstance(value, str | int) else _tuple_of_list(value)


def _sums_to_one(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if abs(sum(shares) - 1) > 1e-6 or shares[0] == 0:
        raise ValueError
    return shares


def _text_of_path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else text_of_number(value)


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


JSON = dict[str, Any]
"""Plain data by name."""

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
    BeforeValidator(_text_of_path),
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

Names = Annotated[
    tuple[Text, ...],
    BeforeValidator(_tuple_of_names),
    Expected("a list of names or patterns"),
]
"""Names of columns; patterns with `*` and `?` too. One name alone is a list of one."""

Ratios = Annotated[
    tuple[NonNegative, NonNegative, NonNegative],
    BeforeValidator(_tuple_of_list),
    AfterValidator(_sums_to_one),
    Expected("three numbers >= 0 that sum to 1, the first > 0"),
]
"""Shares of train, val and test."""

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


def choices(field: FieldInfo) -> list[str]:
    """The words that `field` accepts, where they can be listed."""
    names = [name for item in field.metadata if isinstance(item, OneOf) for name in item.names()]
    return [*names, *_literals(field.annotation)]


def wrong_value(path: str, value: object, field: FieldInfo) -> Problem:
    """The problem of a value that a field does not accept."""
    hint = None
    expects = expected(field)
    if isinstance(value, float) and "integer" in expects and value.is_integer():
        hint = f"write {int(value)}"
    elif isinstance(value, str):
        hint = did_you_mean(value, choices(field))
    elif "list" in expects and isinstance(value, int):
        hint = f"write {path}=[{value},{value}]"
    return Problem(path, shown(value), expects, hint)


def _wrong_argument(
    section: type[Section],
    given: Mapping[str, Any],
    key: str,
    *below: str | int,
) -> Problem:
    """The problem of an argument that a section's class does not accept.

    Args:
        section: The class.
        given: All arguments.
        key: The argument.
        below: Where in its value the mistake is.
    """
    path, value, fields = f"{section.public_name()}.{key}", given.get(key), section.model_fields
    if key not in fields:
        known_as = (synonym(key) or "").rpartition(".")[2]
        hint = f"did you mean {known_as}?" if known_as in fields else did_you_mean(key, fields)
        return Problem(path, shown(value), "unknown key", hint)
    kinds = _sections(fields[key].annotation)
    if len(kinds) == 1 and isinstance(value, Mapping) and isinstance(below[0], str):
        keys = {str(name): entry for name, entry in value.items()}
        made = kinds[0].__new__(kinds[0], **keys)  # a model's keys depend on its name
        return _wrong_argument(type(made), keys, below[0], *below[1:])
    if kinds:
        return Problem(path, shown(value), " or ".join(f"{kind.__name__}(…)" for kind in kinds))
    return wrong_value(path, value, fields[key])


def _sections(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in _sections(part)]


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _literals(part)]


def _in_words(annotation: Any, metadata: list[Any]) -> str:
    for item in metadata:
        if isinstance(item, Expected):
            return item.text
        if isinstance(item, OneOf):
            return "one of " + ", ".join(item.names())
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
