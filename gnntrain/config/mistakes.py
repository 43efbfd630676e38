"""From pydantic's errors to problems: which key, its value, what it accepts, what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import ValidationError

from gnntrain.config.problems import Problem, did_you_mean, shown
from gnntrain.config.types import JSON, Section

UNKNOWN = "no such key"
_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_WORDS = {"boolean": ("true", "false"), "null": ("null",)}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Place:
    """A key with a mistake.

    Attributes:
        path: The key's name, after the names of the sections it is in.
        owner: The class of the section that has the key, or should have.
        value: As given.
    """

    path: tuple[str, ...]
    owner: type[Section]
    value: object

    @property
    def key(self) -> str:
        """Dotted."""
        return ".".join(self.path)

    @property
    def is_known(self) -> bool:
        """Whether there is such a key."""
        return self.path[-1] in self.owner.model_fields


def places(error: ValidationError, kind: type[Section], raw: Mapping[str, Any]) -> list[Place]:
    """Where the mistakes of `raw` are, each key once, in the order of the errors.

    Under an unknown `name` nothing in the section is known: only the name is wrong there.

    Args:
        error: Of `kind.model_validate(raw)`.
        kind: The class.
        raw: Its keys as given.
    """
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    found = {place.path: place for place in (_place(kind, raw, *one["loc"]) for one in errors)}
    unnamed = {path[:-1] for path, place in found.items() if _names(kind, place)}
    return [
        place for path, place in found.items() if path[:-1] not in unnamed or path[-1] == "name"
    ]


def _place(kind: type[Section], raw: Mapping[str, Any], *loc: str | int) -> Place:
    """Follow an error's location to the key: it goes on to a union's member, a list's item."""
    key, *rest = map(str, loc)
    value = raw.get(key)
    section = section_class(kind, key, value)
    if section is None or not isinstance(value, Mapping) or not rest:
        return Place((key,), kind, value)
    below = _place(section, value, *(rest[1:] if rest[0] == section.__name__ else rest))
    return Place((key, *below.path), below.owner, below.value)


def section_class(owner: type[Section], key: str, value: object) -> type[Section] | None:
    """The class that reads the value of a key; None of a key that holds no section."""
    if key in owner.variants:
        return owner.variants[key].choose(value)
    annotation = owner.model_fields[key].annotation if key in owner.model_fields else None
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def _names(kind: type[Section], place: Place) -> Sequence[str]:
    """Every name that a section may have, where the place is a name that chooses its class."""
    section, *key = place.path
    if key == ["name"] and section in kind.variants and choices(key_schema(place.owner, "name")):
        return kind.variants[section].names()
    return ()


def wrong_value(place: Place, kind: type[Section]) -> Problem:
    """The problem of a key of `kind`, or of a section in it, whose value is not accepted."""
    key, value = place.key, place.value
    section = section_class(place.owner, place.path[-1], value)
    if section is not None:
        keys = [name for name in section.model_fields if name != "name"]
        example = f"set its keys, as in {key}.{keys[0]}=..." if keys else None
        return Problem(key, shown(value), "keys, not a value" if keys else "no value", example)
    names = _names(kind, place)
    schema = {"enum": names} if names else key_schema(place.owner, place.path[-1])
    expects = in_words(schema)
    return Problem(key, shown(value), expects, _correction(key, value, expects, choices(schema)))


def _correction(key: str, value: object, expects: str, words: Sequence[str]) -> str | None:
    """A value like the given one that the key accepts."""
    if isinstance(value, float) and value.is_integer() and "integer" in expects:
        return f"write {int(value)}"
    if type(value) is int and "list" in expects:
        return f"write {key}=[{value},{value}]"
    return did_you_mean(value, words) if isinstance(value, str) else None


def argument_problems(
    error: ValidationError, kind: type[Section], keys: Mapping[str, Any], prefix: str
) -> Iterator[Problem]:
    """The problems of arguments that make no section.

    Args:
        error: Of `kind.model_validate(keys)`.
        kind: The section's class.
        keys: The arguments.
        prefix: What is written before a key, `TrainerConfig.`; a key of all sections has its own.
    """
    for place in places(error, kind, keys):
        found = wrong_value(place, kind) if place.is_known else _unknown_argument(place)
        yield found if kind.variants else replace(found, key=prefix + found.key)


def _unknown_argument(place: Place) -> Problem:
    key, known = place.path[-1], place.owner.model_fields
    return Problem(place.key, shown(place.value), UNKNOWN, did_you_mean(key, known))


def key_schema(owner: type[Section], key: str) -> JSON:
    """The JSON schema of a key's values."""
    schema: JSON = owner.model_json_schema()["properties"][key]
    return schema


def in_words(schema: JSON) -> str:
    """The values that a JSON schema accepts: type and range."""
    if "description" in schema:
        return str(schema["description"])
    if "anyOf" in schema:
        return " or ".join(map(in_words, schema["anyOf"]))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    bounds = [f"{sign} {schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema]
    return " ".join([_TYPES[schema["type"]], " and ".join(bounds)]).rstrip()


def choices(schema: JSON) -> list[str]:
    """The words that a JSON schema accepts, where they can be listed."""
    parts = [word for one in schema.get("anyOf", ()) for word in choices(one)]
    constant = [schema["const"]] if "const" in schema else []
    return [
        *map(str, schema.get("enum", constant)),
        *_WORDS.get(schema.get("type", ""), ()),
        *parts,
    ]
