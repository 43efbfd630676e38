"""A YAML file to begin with: a whole configuration, or a composition of the user's own.

A whole configuration is what a run directory has: a mapping of keys for each section. A composition
also chooses options of groups, as Hydra's users write it: `dataset: cora`, or a list `defaults`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gnntrain.config.mistakes import section_class
from gnntrain.config.problems import Problem, shown
from gnntrain.config.reading import read
from gnntrain.config.schema import Config
from gnntrain.config.types import JSON
from gnntrain.config.yaml_files import key_lines, read_yaml

# Where a run went is no part of what it was, nor which sweep it was in.
_OWN_SECTIONS = ("run", "sweep")
# Hydra's own section names code to call in many ways; `_target_` is but one of them.
_KEY = re.compile(r"(?!hydra\b)[\w-]+(\.[\w-]+)*")
_logger = logging.getLogger("gnntrain")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says.

    Attributes:
        choices: The options of a composition by group.
        whole: Sections in place of the default option's keys.
        keys: Sections of keys that change those of the chosen option.
        lines: The line of each key, by its dotted name.
    """

    choices: Mapping[str, object] = field(default_factory=dict)
    whole: JSON = field(default_factory=dict)
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
    found = ConfigFile()
    for file in files[:1]:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
            raw = read_yaml(text)
            if not isinstance(raw, dict):
                raise ValueError("there are no keys in it")
            raw = {str(key): section for key, section in raw.items()}
            if (key := _code_key(raw)) is None:
                found = _read(file, raw, typed, groups, problems)
                found = replace(found, lines=key_lines(text))
            else:
                expects = "gnntrain's own keys in a file that is an argument: Hydra's can run code"
                hint = "type them, or use --config-dir and --config-name"
                problems.append(Problem("", f"{file}: {key}", expects, hint))
        except (OSError, ValueError) as error:
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            problems.append(Problem("", file, f"a configuration that can be read: {reason}"))
    if len(files) > 1:
        problems.append(Problem("", files[1], "one file of a whole configuration"))
    return found


def _code_key(raw: JSON) -> str | None:
    """A key by which Hydra would call what it names: a file may come from anybody."""
    wrong = next((key for key in raw if not _KEY.fullmatch(key)), None)
    return "_target_" if wrong is None and _has_target(raw) else wrong


def _has_target(value: object) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and "_target_" in value) or any(map(_has_target, parts))


def _read(
    file: str,
    raw: JSON,
    typed: Mapping[str, object],
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
) -> ConfigFile:
    direct = {key: raw[key] for key in raw if key in groups and isinstance(raw[key], str | list)}
    sections = {key: raw[key] for key in raw if key not in direct and key != "defaults"}
    is_whole = len(sections) == len(raw)
    if is_whole and _is_complete("run", raw.get("run")):  # a run directory has written it
        sections = {key: sections[key] for key in sections if key not in _OWN_SECTIONS}
    keys = {}
    for group in [key for key in sections if key in typed]:
        section, option = sections.pop(group), typed[group]
        kept = _kept(group, section, option, groups)
        if kept:
            keys[group] = kept
        if kept != section and isinstance(option, str | list):
            left_out = {key: section[key] for key in section if key not in kept}
            there = f"{group}={shown(left_out)}"
            _say_once(f"{file}: {group}={shown(option)} takes the place of {there}")
    if is_whole:
        if "experiment" in typed:
            expects = "no experiment beside a whole configuration"
            problems.append(Problem("", file, expects, "leave one of them out"))
        filled = read(sections, saved=True).config.to_dict()
        whole = {
            key: {**filled.get(key, {}), **section} if isinstance(section, dict) else section
            for key, section in sections.items()
        }
        return ConfigFile(whole=whole, keys=keys)
    choices = {**dict(_defaults(raw.get("defaults", []), groups, problems)), **direct}
    choices = {group: option for group, option in choices.items() if group not in typed}
    return ConfigFile(choices, keys={**sections, **keys})


def _kept(group: str, section: Any, option: object, groups: Mapping[str, Sequence[str]]) -> Any:
    """The keys of a section that change the option which the command line chooses.

    A section that names another option is that option's. One that names none and has every key
    would leave nothing of the option.
    """
    if not isinstance(section, dict):
        return section
    if option is None:
        return {}
    if group == "logger":
        chosen = option if isinstance(option, list) else [option]
        return {name: section[name] for name in section if name in chosen}
    name = section.get("name")
    # What files or a plug-in hold may be called anything.
    is_own = option in ("files", "plugin") and name not in groups[group]
    is_other = _is_complete(group, section) if name is None else name != option and not is_own
    return {} if is_other else section


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
