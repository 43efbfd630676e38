"""From pydantic's errors to problems: which key, its value, what it accepts, what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from gnntrain.config.problems import Problem, did_you_mean, nearest, shown
from gnntrain.config.types import JSON, Section, flattened
from gnntrain.groups import GROUPS

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


def mistakes(
    error: ValidationError, kind: type[Section], raw: Mapping[str, Any], prefix: str = ""
) -> dict[tuple[str, ...], list[Problem]]:
    """The problems of each wrong key of `raw`, by the key's path, in the order of the errors.

    Under an unknown `name` nothing in the section is known: only the name is wrong there.

    Args:
        error: Of `kind.model_validate(raw)`.
        kind: The class.
        raw: Its keys as given.
        prefix: What is written before a key, `TrainerConfig.`.
    """
    found: dict[tuple[str, ...], list[Problem]] = {}
    unnamed: set[tuple[str, ...]] = set()
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        # Follow the location to the key: it goes on to a union's member, a list's item.
        owner, values, loc = kind, raw, [str(part) for part in one["loc"]]
        path: tuple[str, ...] = ()
        while True:
            path, value = (*path, loc[0]), values.get(loc[0])
            section = section_class(owner, loc.pop(0), value)
            if section is None or not isinstance(value, Mapping) or not loc:
                break
            loc = loc[1:] if loc[0] == section.__name__ and loc[1:] else loc
            owner, values = section, value
        key, name, told = ".".join(path), path[-1], []
        if name not in owner.model_fields:  # of an unknown section of a configuration, its keys
            is_whole = bool(kind.variants)
            for one_key, its_value in (flattened if is_whole else dict)({key: value}).items():
                hint = _meant(one_key, kind, raw) if is_whole else None
                hint = hint or did_you_mean(name, owner.model_fields)
                told.append(Problem(prefix + one_key, shown(its_value), UNKNOWN, hint))
        elif section is not None:
            hint = f"set its keys, as in {key}.{next(iter(section.model_fields), 'KEY')}=..."
            if isinstance(value, str):
                hint = f"choose by `- override /{key}: {value}` in an experiment's list `defaults`"
            told.append(Problem(prefix + key, shown(value), "keys, not a value", hint))
        else:
            schema = key_schema(owner, name)
            if path[1:] == ("name",) and path[0] in kind.variants and choices(schema):
                schema = {"enum": kind.variants[path[0]].names()}
                unnamed.add(path[:1])
            near = did_you_mean(value, choices(schema)) if isinstance(value, str) else None
            told.append(Problem(prefix + key, shown(value), in_words(schema), near))
        found[path] = told
    return {p: told for p, told in found.items() if p[:-1] not in unnamed or p[-1] == "name"}


def section_class(owner: type[Section], key: str, value: object) -> type[Section] | None:
    """The class that reads the value of a key; None of a key that holds no section."""
    if key in owner.variants:
        return owner.variants[key].choose(value)
    annotation = owner.model_fields[key].annotation if key in owner.model_fields else None
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def _keys(kind: type[Section], raw: object, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a section and those in it, by the names that `raw` chooses."""
    for key in kind.model_fields:
        value = raw.get(key) if isinstance(raw, Mapping) else None
        section = section_class(kind, key, value)
        yield f"{prefix}{key}"
        if section is not None and (value is not None or not prefix):  # a logger that is chosen
            yield from _keys(section, value, f"{prefix}{key}.")


def _meant(path: str, kind: type[Section], raw: Mapping[str, Any]) -> str | None:
    """A hint at the key that was meant: whose key it is, its section, or its spelling."""
    section, _, key = path.rpartition(".")
    if section in kind.variants:
        variants = kind.variants[section]
        owners = [n for n in variants.names() if key in variants.choose({"name": n}).model_fields]
        if owners:
            few = "|".join(owners[:3]) + ("|..." if len(owners) > 3 else "")
            given = raw.get(section)
            given = given if isinstance(given, Mapping) else {}
            name = variants.choose(given).model_fields["name"].default
            return f"a key of {section}={few}, not of {section}={given.get('name', name)}"
    known = [*_keys(kind, raw)]
    same = [one for one in known if one.endswith(f".{key}")]
    siblings = [one for one in known if one.rpartition(".")[0] == section]
    if same:
        found = [nearest(path, same) or same[0]] if section else same[:3]
    elif section and not siblings:
        found = [nearest(path, known) or ""]
    else:
        pool = siblings if section else [*reversed(known), *GROUPS]
        by_name = {one.rpartition(".")[2]: one for one in pool}
        # Of all keys some is a little like any word.
        found = [by_name.get(nearest(key, by_name, 0.55 if section else 0.6) or "", "")]
    return f"did you mean {' or '.join(found)}?" if all(found) else None


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
