"""A section of the configuration, and its mistakes: which key, its value, what it accepts, what was
meant."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from gnntrain.config.problems import ConfigError, Problem, did_you_mean, nearest, shown
from gnntrain.config.types import JSON, flattened, without_numpy
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

if TYPE_CHECKING:  # a section's keys are its arguments
    from pydantic._internal._model_construction import ModelMetaclass as _SectionType
else:

    class _SectionType(type(BaseModel)):
        """Where a section is made, `TrainerConfig(lr=-1)`, pydantic's error is a `ConfigError`.

        Not in `__init__`: pydantic would call it for a section within a section too, whose
        mistakes are told with those of the whole.
        """

        def __new__(meta, *args: Any, **keys: Any) -> type:
            with warnings.catch_warnings():
                # pydantic has a deprecated method of the name that the key `schema` must have.
                warnings.filterwarnings("ignore", 'Field name "schema" in "FilesConfig" shadows')
                return super().__new__(meta, *args, **keys)

        def __call__(cls, /, **keys: Any) -> Section:
            keys = without_numpy(keys)
            try:
                return cls.model_validate(keys)
            except ValidationError as error:
                prefix = "" if cls.named else f"{cls.__name__}."
                wrong = mistakes(error, cls.class_for(keys), keys, prefix)
            raise ConfigError(problem for of_key in wrong.values() for problem in of_key)


class Section(BaseModel, metaclass=_SectionType):
    """A frozen group of keys. Unknown keys, `true` for a number and 1.5 for an integer fail.

    Raises:
        ConfigError: With every mistake.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )
    named: ClassVar[tuple[str, ...]] = ()
    """The sections in this one whose keys depend on their key `name`."""

    @classmethod
    def class_for(cls, keys: object) -> type[Section]:  # noqa: ARG003
        """The class that judges these keys, by their `name`; of most sections the class itself."""
        return cls

    @classmethod
    def names(cls) -> Sequence[str]:
        """Every name that may be chosen, those of installed packages included."""
        return ()

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(
        cls, raw: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Any:
        kind = cls.class_for(raw) if isinstance(raw, Mapping) else cls
        return handler(raw) if kind is cls else kind.model_validate(raw, context=info.context)

    if not TYPE_CHECKING:  # that it is frozen is known to type checkers

        def __setattr__(self, name: str, value: object) -> None:
            if name.startswith("_"):
                super().__setattr__(name, value)
                return
            expects = "no change: a configuration is frozen"
            hint = f"make a changed copy: config.changed(section={{'{name}': {value!r}}})"
            key = f"{type(self).__name__}.{name}"
            raise ConfigError([Problem(key, shown(value), expects, hint)])

    def changed(self, **changes: Any) -> Self:
        """A copy with other values, judged as those of a new section are.

        Args:
            changes: Values by key. A mapping changes these keys of a section and keeps its others:
                `config.changed(trainer={"lr": 0.003})`.

        Raises:
            ConfigError: With every mistake.
        """
        return type(self)(**self._merged(changes))

    def _merged(self, changes: Mapping[str, Any]) -> JSON:
        merged: JSON = dict(self)
        for key, value in changes.items():
            section = merged.get(key)
            if isinstance(section, Section) and isinstance(value, Mapping):
                value = section._merged(value)
            merged[key] = value
        return merged


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
        owner, values, path = kind, raw, tuple[str, ...]()
        value, section = None, None
        for name in map(str, one["loc"]):
            path, value = (*path, name), values.get(name)
            section = section_class(owner, name, value)
            if section is None or not isinstance(value, Mapping):
                break
            owner, values = section, value
        key, told = ".".join(path), list[Problem]()
        if name not in owner.model_fields:  # of an unknown section of a configuration, its keys
            for one_key, its_value in (flattened if kind.named else dict)({key: value}).items():
                hint = _meant(one_key, kind, raw) if kind.named else None
                hint = hint or did_you_mean(name, owner.model_fields)
                told.append(Problem(prefix + one_key, shown(its_value), UNKNOWN, hint))
        elif section is not None:
            hint = f"set its keys, as in {key}.{next(iter(section.model_fields), 'KEY')}=..."
            if isinstance(value, str):
                hint = f"choose by `- override /{key}: {value}` in an experiment's list `defaults`"
            told.append(Problem(prefix + key, shown(value), "keys, not a value", hint))
        else:
            schema, base = key_schema(owner, name), base_class(kind, path[0])
            if name == "name" and base is not None and base.names() and choices(schema):
                schema = {"enum": [*base.names()]}
                unnamed.add(path[:1])
            near = did_you_mean(value, choices(schema)) if isinstance(value, str) else None
            told.append(Problem(prefix + key, shown(value), in_words(schema), near))
        found[path] = told
    return {p: told for p, told in found.items() if p[:-1] not in unnamed or p[-1] == "name"}


def base_class(owner: type[Section], key: str) -> type[Section] | None:
    """The class that a key of a section is declared of; None of a key that holds no section."""
    annotation = owner.model_fields[key].annotation if key in owner.model_fields else None
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def section_class(owner: type[Section], key: str, value: object) -> type[Section] | None:
    """The class that judges the value of a key; None of a key that holds no section."""
    base = base_class(owner, key)
    return None if base is None else base.class_for(value)


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
    base = base_class(kind, section)
    if base is not None:  # another name's key
        owners = [n for n in base.names() if key in base.class_for({"name": n}).model_fields]
        if owners:
            few = "|".join(owners[:3]) + ("|..." if len(owners) > 3 else "")
            given = raw.get(section)
            given = given if isinstance(given, Mapping) else {}
            name = given.get("name", base.class_for(given).model_fields["name"].default)
            return f"a key of {section}={few}, not of {section}={name}"
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
