"""From pydantic's errors to problems: which key, its value, what it accepts, what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from gnntrain.config.problems import Problem, did_you_mean, nearest, shown
from gnntrain.config.types import JSON, Section, flattened
from gnntrain.groups import GROUPS

UNKNOWN = "no such key"
# A key or a value that one would guess and that is not there yet.
_NOT_YET = re.compile(r"task\.type=(edge|link|graph)_|sampler\.time_attr=|serve\b")
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
    inner = rest[1:] if rest[0] == section.__name__ and rest[1:] else rest
    below = _place(section, value, *inner)
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


def problems_of(
    place: Place, kind: type[Section], values: JSON | None = None, prefix: str = ""
) -> Iterator[Problem]:
    """The problem of a wrong key of `kind`; of an unknown section, those of each of its keys.

    Args:
        place: The key.
        kind: The class of the whole.
        values: The whole as it is without mistakes, of a configuration.
        prefix: What is written before a key, `TrainerConfig.`.
    """
    key, value = place.key, place.value
    if place.path[-1] not in place.owner.model_fields:
        flat = flattened({key: value}) if values is not None else {key: value}
        for path, one in flat.items():
            hint = _whose(path, kind, values) if values is not None else None
            hint = hint or did_you_mean(place.path[-1], place.owner.model_fields)
            if _NOT_YET.match(f"{path}="):
                hint = "not supported yet: docs/faq.md says what is"
            yield Problem(prefix + path, shown(one), UNKNOWN, hint)
        return
    section = section_class(place.owner, place.path[-1], value)
    if section is not None:
        example = f"set its keys, as in {key}.{next(iter(section.model_fields), 'KEY')}=..."
        if isinstance(value, str):
            example = f"choose by `- override /{key}: {value}` in an experiment's list `defaults`"
        yield Problem(prefix + key, shown(value), "keys, not a value", example)
        return
    names = _names(kind, place)
    schema = {"enum": names} if names else key_schema(place.owner, place.path[-1])
    expects, hint = in_words(schema), None
    if _NOT_YET.match(f"{key}={value}"):
        hint = "not supported yet: docs/faq.md says what is"
    elif key == "model.name" and value == "plugin":
        hint = "model=plugin model.name=NAME, with the name of an installed package's model"
    elif key == "trainer.device" and value == "gpu":  # no spelling of xpu
        hint = "leave it out: auto takes the GPUs there are"
    elif isinstance(value, float) and value.is_integer() and "integer" in expects:
        hint = f"write {int(value)}"
    elif type(value) is int and "list" in expects:
        hint = f"write {key}=[{value},{value}]"
    elif isinstance(value, str):
        hint = did_you_mean(value, choices(schema))
        if key == "dataset.name" and hint is None:
            hint = f"did you mean dataset=files dataset.name={value}?"
    yield Problem(prefix + key, shown(value), expects, hint)


def _whose(path: str, kind: type[Section], values: JSON) -> str | None:
    """A hint at the key that was meant: whose key it is, its section, or its spelling."""
    section, _, key = path.rpartition(".")
    if section in kind.variants:
        variants = kind.variants[section]
        owners = [n for n in variants.names() if key in variants.choose({"name": n}).model_fields]
        if owners:
            few = "|".join(owners[:3]) + ("|..." if len(owners) > 3 else "")
            return f"a key of {section}={few}, not of {section}={values[section]['name']}"
    known = flattened(values)
    found = [name for name in known if name.endswith(f".{key}")]
    loggers = section_class(kind, "logger", {})
    others = [f"logger.{name}" for name in loggers.model_fields] if loggers else []
    siblings = [name for name in (*known, *others) if name.rpartition(".")[0] == section]
    if section and found:
        found = [nearest(path, found) or found[0]]
    elif siblings:
        near = nearest(key, (name.rpartition(".")[2] for name in siblings))
        found = [f"{section}.{near}"] if near else []
    elif section:
        near = nearest(path, known)
        found = [near] if near else []
    elif not found:
        near = nearest(key, [*GROUPS, *(name.rpartition(".")[2] for name in known)], 0.6)
        found = [near] if near in GROUPS else [k for k in known if k.endswith(f".{near}")]
    now = [f"{name} (now {shown(known[name])})" if name in known else name for name in found[:3]]
    return f"did you mean {' or '.join(now)}?" if now else None


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
    words = _WORDS.get(schema.get("type", ""), ())
    return [*map(str, schema.get("enum", constant)), *words, *parts]
