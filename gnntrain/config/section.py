"""A section of the configuration, and its mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import pydantic
from pydantic import ValidationError

from gnntrain.config.problems import ConfigError, Problem, did_you_mean, nearest, shown
from gnntrain.config.types import JSON, flattened, plain
from gnntrain.errors import UserError

UNKNOWN = "no such key"
GONE = ("features.hotness",)
"""Keys of earlier versions, in runs of which they may stand: they changed no result."""

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

if TYPE_CHECKING:  # a section's keys are its arguments
    from pydantic._internal._model_construction import ModelMetaclass as _SectionType
else:

    class _SectionType(type(pydantic.BaseModel)):
        """Where a section is made, `TrainerConfig(lr=-1)`, its keys are judged, and the key `name`
        chooses its class."""

        def __new__(meta, *args: Any, **keys: Any) -> type:
            with warnings.catch_warnings():
                # pydantic has a deprecated method of the name that the key `schema` must have.
                warnings.filterwarnings("ignore", 'Field name "schema" in "FilesConfig" shadows')
                return super().__new__(meta, *args, **keys)

        def __call__(cls, /, **keys: Any) -> Section:
            section, problems = judged(cls, keys, "" if cls.named else f"{cls.__name__}.")
            if problems:
                raise ConfigError(problems)
            return section


class Section(pydantic.BaseModel, metaclass=_SectionType):
    """A frozen group of keys. Unknown keys, `true` for a number and 1.5 for an integer fail.

    Raises:
        ConfigError: With every mistake.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )
    named: ClassVar[tuple[str, ...]] = ()
    """The sections in this one whose keys depend on their key `name`."""

    @classmethod
    def class_for(cls, keys: Mapping[str, Any]) -> type[Section]:  # noqa: ARG003
        """The class that judges these keys, by their `name`; of most sections the class itself."""
        return cls

    @classmethod
    def completed(cls, keys: JSON, *, saved: bool) -> JSON:  # noqa: ARG003
        """The keys with those that follow from others of them; `saved`: read from a run."""
        return keys

    if not TYPE_CHECKING:  # that it is frozen is known to type checkers

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                hint = f"Make a changed copy: config.changed(section={{'{name}': {value!r}}})."
                raise UserError(f"{type(self).__name__}.{name}: a configuration is frozen.", hint)
            super().__setattr__(name, value)

    def changed(self, **changes: Any) -> Self:
        """A copy with other values, judged as those of a new section are.

        Args:
            changes: Values by key. A mapping changes these keys of a section and keeps its others:
                `config.changed(trainer={"lr": 0.003})`.

        Raises:
            ConfigError: With every mistake.
        """
        keys: JSON = dict(self)
        for key, value in changes.items():
            is_part = isinstance(keys.get(key), Section) and isinstance(value, Mapping)
            keys[key] = {**dict(keys[key]), **value} if is_part else value
        return type(self)(**keys)


AnySection = TypeVar("AnySection", bound=Section)


def judged(
    kind: type[AnySection], raw: Mapping[str, Any], prefix: str = "", *, saved: bool = False
) -> tuple[AnySection, list[Problem]]:
    """The section that plain data ask for, but for the keys with mistakes, and the mistakes, with
    `prefix` before a key (`TrainerConfig.`). Of `saved` data what has gone since is none."""
    top, keys, problems = kind.class_for(raw), plain(raw), list[Problem]()

    def judge(declared: type[Section], given: JSON, place: str) -> Section:
        kind, known = declared.class_for(given), JSON()
        found: list[Problem] = []
        for key, value in kind.completed(given, saved=saved).items():
            section = base_class(kind, key)
            if section is not None and isinstance(value, dict):
                known[key] = judge(section, value, f"{place}{key}.")
            elif key in kind.model_fields:
                known[key] = value
            elif not (saved and f"{place}{key}" in GONE):
                for path, its_value in flattened({f"{place}{key}": value}).items():
                    hint = _meant(path, top, keys)
                    found.append(Problem(prefix + path, shown(its_value), UNKNOWN, hint))
        try:
            made = kind.model_validate(known, context={"saved": saved})
        except ValidationError as error:
            wrong = {one["loc"][0] for one in error.errors(include_url=False)}
            values = {key: known.pop(key) for key in [*known] if key in wrong}
            if kind is not declared and "name" in values and choices(key_schema(kind, "name")):
                # Which other keys there are is not known.
                values, known, found = {"name": values["name"]}, {}, []
            for key, value in values.items():
                schema, is_section = key_schema(kind, key), base_class(kind, key) is not None
                expects = "keys, not a value" if is_section else in_words(schema)
                hint = did_you_mean(value, choices(schema)) if isinstance(value, str) else None
                found.append(Problem(f"{prefix}{place}{key}", shown(value), expects, hint))
            made = kind.model_validate(known, context={"saved": saved})
        problems.extend(found)
        return made

    return cast(AnySection, judge(kind, keys, "")), problems


def base_class(owner: type[Section], key: str) -> type[Section] | None:
    """The class that a key of a section is declared of; None of a key that holds no section."""
    kind = owner.model_fields[key].annotation if key in owner.model_fields else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _meant(path: str, kind: type[Section], raw: JSON) -> str | None:
    """A hint at the key that was meant: whose key it is, its section, or its spelling."""
    section, _, key = path.rpartition(".")
    base = base_class(kind, section)
    if base is not None and section in kind.named:
        names = choices(key_schema(base, "name"))
        owners = [one for one in names if key in base.class_for({"name": one}).model_fields]
        if owners:
            few = "|".join(owners[:3]) + "|..." * (len(owners) > 3)
            return f"a key of {section}={few}"
    # Every dotted key of the section and those in it, by the names that `raw` chooses.
    known = [*["experiment"] * bool(kind.named), *kind.model_fields]
    for name in kind.model_fields:
        if (part := base_class(kind, name)) is not None:
            given = raw.get(name)
            chosen = part.class_for(given if isinstance(given, Mapping) else {})
            known += [f"{name}.{one}" for one in chosen.model_fields]
    if same := [one for one in known if one.endswith(f".{key}")]:
        return f"did you mean {' or '.join(same[:3])}?"
    siblings = [one for one in known if not section or one.rpartition(".")[0] == section]
    by_name = {one.rpartition(".")[2]: one for one in reversed(siblings)}
    near = by_name.get(nearest(key, by_name) or "") or nearest(path, known)
    return f"did you mean {near}?" if near else None


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
