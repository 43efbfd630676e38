"""A composed configuration, key by key: values are set and resolved one at a time, so that a
mistake in one hides none in another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.overrides import LIST_KEYS
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.whole import ConfigFile

_MOST_INTERPOLATIONS = 32
EXPERIMENT_CHOICE = (
    "an experiment begins with `# @package _global_` and chooses by `- override /{}: {}` in its "
    "list `defaults`"
)


def add_file(node: DictConfig, file: ConfigFile, unsure: Collection[str]) -> None:
    """Add the sections of the user's file, except those of options that are not known."""
    for section, keys in file.whole.items():
        if section not in unsure:
            OmegaConf.update(node, section, keys, merge=False, force_add=True)
    for section, keys in file.keys.items():
        if section not in unsure:
            _make_way(node, section, keys)
            OmegaConf.update(node, section, keys, merge=True, force_add=True)


def remove_strings(node: DictConfig, groups: Iterable[str]) -> Iterator[Problem]:
    """An option where a section's keys belong, which an experiment file may have; it is removed."""
    plain = cast(dict[str, Any], OmegaConf.to_container(node, resolve=False))
    for group in groups:
        option = plain.get(group)
        if isinstance(option, str):
            del node[group]
            yield Problem(group, shown(option), "keys", EXPERIMENT_CHOICE.format(group, option))


def set_key(
    node: DictConfig, override: Override, groups: Mapping[str, Sequence[str]]
) -> Problem | None:
    """Set, or with ~ remove, one key; the problem if that cannot be done."""
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        given = str(override.input_line).partition("=")[0]
        return Problem(given, shown(value), "a group with @package, or a key without")
    try:
        if override.is_delete():
            return _remove(node, key)
        problem = name_problem(override, groups)
        if problem is not None:
            unchanged = value == OmegaConf.select(node, key)
            return None if unchanged else problem
        # Lists by edge type are one value: not merged with those that are there.
        is_value = key in LIST_KEYS and key not in groups
        OmegaConf.update(node, key, value, merge=not is_value, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        # also where a key's value refers to what is not there
        given = f"~{key}" if override.is_delete() else shown(value)
        return Problem("" if override.is_delete() else key, given, " ".join(str(error).split()))
    return None


def _make_way(node: DictConfig, key: str, value: object) -> None:
    """Remove a list where a mapping will stand, and a mapping where a list will: OmegaConf merges
    neither with the other."""
    there = OmegaConf.select(node, key, throw_on_resolution_failure=False)
    if isinstance(value, dict) and isinstance(there, DictConfig):
        for name in value.keys() & there.keys():
            _make_way(there, str(name), value[name])
    elif isinstance(value, dict | list) and isinstance(there, ListConfig | DictConfig):
        OmegaConf.update(node, key, None)


def name_problem(override: Override, groups: Mapping[str, Sequence[str]]) -> Problem | None:
    """The name of another option, which the keys that were chosen with this one do not fit."""
    section, _, last = override.key_or_group.rpartition(".")
    value = override.value()
    if last != "name" or section not in ("dataset", "model") or value not in groups[section]:
        return None
    expects = f"left to the group: the keys of {section} depend on it"
    return Problem(f"{section}.name", shown(value), expects, f"write {section}={value}")


def _remove(node: DictConfig, key: str) -> Problem | None:
    section, _, last = key.rpartition(".")
    parent = OmegaConf.select(node, section) if section else node
    if not isinstance(parent, DictConfig) or last not in parent:
        known = map(str, parent) if isinstance(parent, DictConfig) else ()
        return Problem("", f"~{key}", "no such key", did_you_mean(last, list(known)))
    del parent[last]  # pop would look up what its value refers to
    return None


def resolved(node: DictConfig, problems: list[Problem]) -> dict[str, Any]:
    """Plain data, interpolations resolved; those that cannot be are problems."""
    number = str(OmegaConf.to_container(node, resolve=False)).count("${")
    if number > _MOST_INTERPOLATIONS:  # each may double what the one before stands for
        expects = f"at most {_MOST_INTERPOLATIONS} interpolations in all"
        raise ConfigError([*problems, Problem("", f"{number} interpolations", expects)])
    try:
        plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        return _resolve(node, "", problems)
    return {str(key): value for key, value in cast(dict[Any, Any], plain).items()}


def _resolve(node: DictConfig, prefix: str, problems: list[Problem]) -> dict[str, Any]:
    """As `resolved`, key by key, of one section."""
    plain: dict[str, Any] = {}
    unresolved = cast(dict[Any, Any], OmegaConf.to_container(node, resolve=False))
    for key in node:
        path = f"{prefix}{key!s}"
        try:
            if OmegaConf.is_missing(node, key):
                problems.append(Problem(path, "???", "a value: it has no default"))
                continue
            value = node[key]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            expects = f"an interpolation that resolves: {reason}"
            problems.append(Problem(path, shown(unresolved.get(key)), expects))
            continue
        nested = isinstance(value, DictConfig)
        plain[str(key)] = _resolve(value, f"{path}.", problems) if nested else value
    return plain
