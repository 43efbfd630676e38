"""From plain data to the schema, collecting every mistake on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gnntrain.config.checks import contradictions, missing_files
from gnntrain.config.loggers import LoggerConfig
from gnntrain.config.models import DEFAULT, PluginConfig, model_names, model_section, model_sections
from gnntrain.config.names import (
    BUILTIN_NAMES,
    DATASET_NAMES,
    SYNTHETIC_NAMES,
)
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, nearest, shown
from gnntrain.config.schema import (
    BuiltinConfig,
    Config,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
)
from gnntrain.config.sweeps import SWEEP_CLASSES
from gnntrain.config.synonyms import synonym
from gnntrain.config.types import Section, expected, wrong_value
from gnntrain.groups import GROUPS
from gnntrain.plugins import DATASETS, MODELS, plugin_names

_UNKNOWN = "a key that exists"
_CLASSES: Mapping[str, Mapping[str, type[Section]]] = {
    "dataset": {
        **dict.fromkeys(SYNTHETIC_NAMES, SyntheticConfig),
        **dict.fromkeys(BUILTIN_NAMES, BuiltinConfig),
        "files": FilesConfig,
    },
    "sweep": SWEEP_CLASSES,
}
# A data set with one of these keys is a user's own, which may have any name that is not taken.
_FILES_KEYS = frozenset({"data", "edges", "features"})
_DEFAULT_NAMES = {"dataset": "synthetic", "model": DEFAULT, "sweep": "basic"}


@dataclass(frozen=True)
class Reading:
    """What could be read.

    Attributes:
        config: The configuration, with defaults in place of what is wrong.
        problems: Every mistake.
    """

    config: Config
    problems: list[Problem]

    def is_sound(self, *keys: str) -> bool:
        """Whether no mistake touches these keys, so that they may be compared."""
        wrong = {problem.key for problem in self.problems}
        # Under an unknown name nothing in the section is known.
        wrong |= {key.removesuffix(".name") for key in wrong if key.endswith(".name")}
        return not any(key == bad or key.startswith(bad + ".") for key in keys for bad in wrong)


def from_dict(raw: Mapping[str, Any], *, saved: bool = False) -> Config:
    """The configuration that `raw` (plain data, possibly in part) asks for.

    Args:
        raw: Sections by name, each a mapping of keys; what is left out has its default.
        saved: Read back from a run directory: raw files and plug-ins may have gone since, and
            are not looked for.

    Raises:
        ConfigError: With every mistake: unknown keys and names, wrong types and ranges, keys that
            contradict each other, files that are not there.
    """
    reading = read(raw, saved=saved)
    if reading.problems:
        raise ConfigError(reading.problems)
    return reading.config


def read(raw: Mapping[str, Any], *, saved: bool = False, found: Sequence[Problem] = ()) -> Reading:
    """As `from_dict`, but the mistakes are returned, with what could be read.

    Args:
        raw: As for `from_dict`.
        saved: As for `from_dict`.
        found: Mistakes already known; what they touch is not compared with other keys.
    """
    wrong: list[Problem] = []
    config = cast(Config, _read(Config, "", raw, wrong, saved=saved))
    values = dict(_leaves(config.to_dict()))
    explained = [
        replace(p, hint=_nearest_key(p.key, config, values)) if p.expected == _UNKNOWN else p
        for p in wrong
    ]
    reading = Reading(config, [*found, *explained])
    contradicting = [p for keys, p in contradictions(config) if reading.is_sound(*keys)]
    missing = [] if saved else [p for p in missing_files(config) if reading.is_sound(p.key)]
    return Reading(config, [*reading.problems, *contradicting, *missing])


def takes_integers(config: Config, key: str) -> bool:
    """Whether a dotted key takes whole numbers alone."""
    section, _, name = key.rpartition(".")
    owner: Section = getattr(config, section, config)
    field = type(owner).model_fields.get(name)
    return field is not None and "an integer" in expected(field)


def _read(
    kind: type[Section],
    prefix: str,
    raw: Mapping[str, Any],
    problems: list[Problem],
    *,
    saved: bool,
) -> Section:
    """A section; what is wrong is added to `problems` and gets its default."""
    sound: dict[str, object] = {}
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if key not in kind.model_fields:
            problems.extend(_unknown_keys(path, value))
            continue
        section = _section_class(kind.model_fields[key])
        if section is None or (value is None and prefix):
            sound[key] = value
        elif not isinstance(value, Mapping):
            expects = "keys, not a value" if section.model_fields else "no value"
            problems.append(Problem(path, shown(value), expects, _example(path, section)))
        elif (unknown := _unknown_name(path, value, saved=saved)) is not None:
            problems.append(unknown)
        else:
            chosen = _chosen_class(path, value, section)
            sound[key] = _read(chosen, f"{path}.", value, problems, saved=saved)
    try:
        return kind.model_validate(sound, context={"saved": saved})
    except ValidationError as error:
        wrong = dict.fromkeys(str(entry["loc"][0]) for entry in error.errors())
    for key in wrong:
        problems.append(wrong_value(f"{prefix}{key}", sound.pop(key), kind.model_fields[key]))
    return kind.model_validate(sound, context={"saved": saved})


def _unknown_keys(path: str, value: object) -> Iterator[Problem]:
    """An unknown key; where it is a section, each of the keys in it."""
    for key, given in _leaves({path: value}):
        yield Problem(key, shown(given), _UNKNOWN)


def _section_class(field: FieldInfo) -> type[Section] | None:
    """The (first) section that a field holds, if it holds one."""
    for part in (field.annotation, *get_args(field.annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _chosen_class(path: str, raw: Mapping[str, Any], default: type[Section]) -> type[Section]:
    if path not in _DEFAULT_NAMES:
        return default
    name = str(raw.get("name", _DEFAULT_NAMES[path]))
    if path == "model":
        return model_section(name)
    # A name that is not listed is a user's own, or an installed package's data set.
    unlisted = FilesConfig if _FILES_KEYS & raw.keys() else BuiltinConfig
    return _CLASSES[path].get(name, unlisted)


def _unknown_name(path: str, raw: Mapping[str, Any], *, saved: bool) -> Problem | None:
    """The mistake in the name that chooses a section's class, if there is one."""
    if path not in _DEFAULT_NAMES or "name" not in raw:
        return None
    names = _names(path)
    name = raw["name"]
    if path == "dataset" and _FILES_KEYS & raw.keys() and isinstance(name, str | int | float):
        return None
    may_have_gone = saved and path in ("dataset", "model") and isinstance(name, str)
    if name in names or may_have_gone:
        return None
    expects = "one of " + ", ".join(names)
    if path == "model" and name == PluginConfig().name:
        expects = "the name of an installed plug-in model: " + (
            ", ".join(plugin_names(MODELS)) or f"no package offers one (entry points {MODELS})"
        )
        return Problem("model.name", shown(name), expects, "model=plugin model.name=NAME")
    hint = did_you_mean(str(name), names)
    if hint is None and path == "dataset":
        hint = f"did you mean dataset=files dataset.name={shown(name)}?"
    return Problem(f"{path}.name", shown(name), expects, hint)


def _names(path: str) -> Sequence[str]:
    if path == "model":
        return (*model_names(), *plugin_names(MODELS))
    if path == "dataset":
        return (*DATASET_NAMES, *plugin_names(DATASETS))
    return tuple(_CLASSES[path])


def _example(path: str, section: type[Section]) -> str | None:
    """How a key of the section is set."""
    keys = [key for key in section.model_fields if key != "name"]
    return f"set its keys, as in {path}.{keys[0]}=..." if keys else None


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every dotted key with its value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nearest_key(path: str, config: Config, values: Mapping[str, object]) -> str | None:
    """A hint at the key that was meant: its place, its spelling, or whose key it is."""
    typed, _, key = path.rpartition(".")
    is_known = typed in Config.model_fields or "." in typed
    section = typed if is_known else nearest(typed, Config.model_fields) or ""
    siblings = [k.rpartition(".")[2] for k in values if k.rpartition(".")[0] == section]
    siblings += LoggerConfig.model_fields if section == "logger" else []
    classes = model_sections() if section == "model" else _CLASSES.get(section, {})
    owners = [name for name, kind in classes.items() if key in kind.model_fields]
    if owners and key not in siblings:
        own = getattr(config, section)
        chosen = own.option if isinstance(own, DatasetConfig) else own.name
        return f"a key of {section}={'|'.join(_few(owners))}, not of {section}={chosen}"
    known_as = synonym(key)
    if known_as is not None and known_as in values:
        return f"did you mean {_now(known_as, values)}?"
    found = _namesakes(key, values)
    if section:
        near = nearest(key, siblings)
        if near and (key in siblings or not found):
            found = [f"{section}.{near}"]
    elif not found:
        near = nearest(key, GROUPS) or nearest(key, _last_parts(values), cutoff=0.7)
        found = _namesakes(near, values) or [near] if near else []
    if not found:
        return None if section in ("", typed) else f"did you mean {section}?"
    return f"did you mean {' or '.join(_now(k, values) for k in found[:3])}?"


def _last_parts(values: Mapping[str, object]) -> list[str]:
    return [key.rpartition(".")[2] for key in values]


def _namesakes(name: str, values: Mapping[str, object]) -> list[str]:
    """The keys whose last part is `name`."""
    return [key for key in values if "." in key and key.rpartition(".")[2] == name]


def _now(key: str, values: Mapping[str, object]) -> str:
    """The key with its present value, if it has one."""
    return f"{key} (now {shown(values[key])})" if key in values else key


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 3 else [*names[:3], "..."]
