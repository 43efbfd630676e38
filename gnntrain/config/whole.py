"""A YAML file to begin with: a whole configuration, or a composition of the user's own.

A whole configuration is what a run directory has: a mapping of keys for each section. A composition
also chooses options of groups, as Hydra's users write it: `dataset: cora`, or a list `defaults`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from gnntrain.config.datasets import FilesConfig
from gnntrain.config.mistakes import section_class
from gnntrain.config.models import PluginConfig
from gnntrain.config.problems import Problem, shown
from gnntrain.config.schema import Config
from gnntrain.config.types import JSON
from gnntrain.config.yaml_files import key_lines, read_yaml
from gnntrain.plugins import DATASETS, MODELS, plugin_names

# Where a run went is no part of what it was, nor which sweep it was in.
_OWN_SECTIONS = ("run", "sweep")
_logger = logging.getLogger("gnntrain")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says.

    Attributes:
        choices: The options by group: the chosen ones, and those that the sections are of.
        keys: Sections of keys that change those of the chosen option.
        lines: The line of each key, by its dotted name.
    """

    choices: Mapping[str, object] = field(default_factory=dict)
    keys: JSON = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)


def is_config_file(text: str) -> bool:
    """Whether an argument of the command line is such a file."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def read_config_file(
    files: Sequence[str],
    typed: Mapping[str, object],
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
) -> ConfigFile:
    """The one file that is given, without sections that are those of other options than the chosen.

    Args:
        files: As typed.
        typed: The options that the command line chooses, by group; None where it removes a
            section; something else than text or a list where it goes through several.
        groups: The options of every group.
        problems: What is wrong is added.
    """
    if len(files) > 1:
        problems.append(Problem("", files[1], "one file of a whole configuration"))
    for file in files[:1]:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
            raw = read_yaml(text)
            if not isinstance(raw, dict):
                raise ValueError("there are no keys in it")
        except (OSError, ValueError) as error:
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            problems.append(Problem("", file, f"a configuration that can be read: {reason}"))
        else:
            sections = {str(key): section for key, section in raw.items()}
            found = _read(file, sections, typed, groups, problems)
            return replace(found, lines=key_lines(text))
    return ConfigFile()


def _read(
    file: str,
    raw: JSON,
    typed: Mapping[str, object],
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
) -> ConfigFile:
    direct = {key: raw[key] for key in raw if key in groups and isinstance(raw[key], str | list)}
    chosen = {**dict(_defaults(raw.get("defaults", []), groups, problems)), **direct}
    keys = {key: raw[key] for key in raw if key not in direct and key != "defaults"}
    is_whole = not chosen and "defaults" not in raw
    if is_whole and "experiment" in typed:
        expects = "no experiment beside a whole configuration"
        problems.append(Problem("", file, expects, "leave one of them out"))
    if is_whole and _is_complete("run", keys.get("run")):  # a run directory has written it
        keys = {key: keys[key] for key in keys if key not in _OWN_SECTIONS}
    for group, section in keys.items():
        if not isinstance(section, dict) or group not in groups:
            continue
        option = _option(group, section, groups)
        if group not in typed:
            if option is not None and (is_whole or group != "logger"):
                chosen.setdefault(group, option)
            continue
        new = typed[group]
        if group == "logger":
            names = new if isinstance(new, list) else [new]
            keys[group] = {name: section[name] for name in section if name in names}
        elif option != new and ("name" in section or _is_complete(group, section)):
            keys[group] = {}  # it is another option's; one with every key would leave nothing
        left_out = {key: section[key] for key in section if key not in keys[group]}
        if left_out and isinstance(new, str | list):
            there = f"{group}={shown(left_out)}"
            _say_once(f"{file}: {group}={shown(new)} takes the place of {there}")
    choices = {group: option for group, option in chosen.items() if group not in typed}
    return ConfigFile(choices, {key: keys[key] for key in keys if keys[key] != {}})


def _option(group: str, section: JSON, groups: Mapping[str, Sequence[str]]) -> object:
    """The option that a section is of, by its name; None where it does not say."""
    if group == "logger":
        return [name for name in section if name in groups[group]]
    name, kind = section.get("name"), section_class(Config, group, section)
    if kind is FilesConfig:
        return "files"
    if kind is PluginConfig and name in plugin_names(MODELS):
        return "plugin"
    packaged = plugin_names(DATASETS) if group == "dataset" else ()
    return name if name in groups[group] or name in packaged else None


def _is_complete(section: str, keys: object) -> bool:
    """Whether a section has every key, as in a file that a run has written."""
    kind = section_class(Config, section, keys)
    return kind is not None and isinstance(keys, dict) and kind.model_fields.keys() <= keys.keys()


@cache
def _say_once(text: str) -> None:
    """A configuration may be composed several times."""
    _logger.warning("%s", text)


def _defaults(
    entries: object, groups: Mapping[str, object], problems: list[Problem]
) -> Iterator[tuple[str, object]]:
    """The choices of a defaults list, with or without Hydra's `override /`."""
    for entry in entries if isinstance(entries, list) else [entries]:
        pairs = entry.items() if isinstance(entry, dict) else [(entry, None)]
        for key, option in pairs:
            group = str(key).removeprefix("override ").strip().removeprefix("/")
            if group in groups:
                yield group, option
            elif group != "_self_":
                expects = "a group and its option, as in `- dataset: cora`"
                problems.append(Problem("defaults", shown(entry), expects))
