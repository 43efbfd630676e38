"""A section of the configuration, and its mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_args

import pydantic
from pydantic import ValidationError

from gnntrain.config.problems import ConfigError, Problem, did_you_mean, nearest, shown
from gnntrain.config.types import JSON, flattened, without_numpy

UNKNOWN = "no such key"
GONE = {("features", "hotness")}
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
        """Where a section is made, `TrainerConfig(lr=-1)`, pydantic's error is a `ConfigError`. Not
        in `__init__`, which pydantic calls for a section within a section too."""

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
    def class_for(cls, keys: object) -> type[Section]:  # noqa: ARG003
        """The class that judges these keys, by their `name`; of most sections the class itself."""
        return cls

    @classmethod
    def names(cls) -> Sequence[str]:
        """Every name that may be chosen, those of installed packages included."""
        return ()

    @classmethod
    def completed(cls, keys: JSON, *, saved: bool) -> JSON:  # noqa: ARG003
        """The keys with those that follow from others of them; `saved`: read from a run."""
        return keys

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _by_name(
        cls, raw: Any, handler: pydantic.ModelWrapValidatorHandler[Self], info: Any
    ) -> Any:
        if not isinstance(raw, Mapping):
            return handler(raw)
        if (kind := cls.class_for(raw)) is not cls:
            return kind.model_validate(raw, context=info.context)
        return handler(cls.completed({**raw}, saved=bool((info.context or {}).get("saved"))))

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


AnySection = TypeVar("AnySection", bound=Section)


def judged(
    kind: type[AnySection], raw: Mapping[str, Any], prefix: str = "", *, saved: bool = False
) -> tuple[AnySection, list[Problem]]:
    """The section that plain data ask for, but for the keys with mistakes, and the mistakes, with
    `prefix` before a key (`TrainerConfig.`). Of `saved` data what has gone since is none."""
    raw, problems = _without(without_numpy(raw), GONE if saved else ()), list[Problem]()
    while True:
        try:
            return kind.model_validate(raw, context={"saved": saved}), problems
        except ValidationError as error:
            wrong = _mistakes(error, kind.class_for(raw), raw, prefix)
        # Without the wrong keys, so that the others can be compared. Without its name, a section's
        # keys are not known.
        raw = _without(raw, {path[: -(path[-1] == "name")] or path for path in wrong})
        problems = problems or [one for of_key in wrong.values() for one in of_key]


def _mistakes(
    error: ValidationError, kind: type[Section], raw: Mapping[str, Any], prefix: str
) -> dict[tuple[str, ...], list[Problem]]:
    """The problems of each wrong key by its path; under an unknown `name` that of the name only."""
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
        key = ".".join(path)
        if name not in owner.model_fields:  # of an unknown section of a configuration, its keys
            found[path] = [
                Problem(prefix + one_key, shown(its_value), UNKNOWN, _meant(one_key, kind, raw))
                for one_key, its_value in flattened({key: value}).items()
            ]
            continue
        schema, base = key_schema(owner, name), base_class(kind, path[0])
        if name == "name" and base is not None and base.names() and choices(schema):
            schema = {"enum": [*base.names()]}
            unnamed.add(path[:1])
        expects = in_words(schema) if section is None else "keys, not a value"
        hint = did_you_mean(value, choices(schema)) if isinstance(value, str) else None
        found[path] = [Problem(prefix + key, shown(value), expects, hint)]
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
    base, given = base_class(kind, section), raw.get(section)
    given = given if isinstance(given, Mapping) else {}  # beside a key with a dot in it
    if base is not None:  # another name's key
        owners = [n for n in base.names() if key in base.class_for({"name": n}).model_fields]
        if owners:
            few = "|".join(owners[:3]) + ("|..." if len(owners) > 3 else "")
            default = base.class_for(given).model_fields["name"].default
            return f"a key of {section}={few}, not of {section}={given.get('name', default)}"
    known = [*_keys(kind, raw), *["experiment"] * bool(kind.named)]
    if same := [one for one in known if one.endswith(f".{key}")]:
        found = [nearest(path, same) or same[0]] if section else same[:3]
        return f"did you mean {' or '.join(found)}?"
    siblings = [one for one in known if not section or one.rpartition(".")[0] == section]
    by_name = {one.rpartition(".")[2]: one for one in reversed(siblings)}
    near = by_name.get(nearest(key, by_name) or "") if by_name else nearest(path, known)
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


def _without(
    raw: Mapping[Any, Any], paths: Collection[tuple[str, ...]], within: tuple[str, ...] = ()
) -> JSON:
    """Plain data without these keys; every key is text."""
    found = {(*within, str(key)): value for key, value in raw.items()}
    return {
        path[-1]: _without(value, paths, path) if isinstance(value, Mapping) else value
        for path, value in found.items()
        if path not in paths
    }
