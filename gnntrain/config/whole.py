"""A YAML file to begin with: a whole configuration, or a composition of the user's own.

A whole configuration is what a run directory has: a mapping of keys for each section. A composition
also chooses options of groups, as Hydra's users write it: `dataset: cora`, or a list `defaults`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gnntrain.config.problems import ConfigError, Problem, shown
from gnntrain.config.reading import from_dict
from gnntrain.config.types import JSON
from gnntrain.config.yaml_files import read_yaml

# Where that run went is no part of what it was, nor which sweep it was in.
_OWN_SECTIONS = ("run", "sweep")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says.

    Attributes:
        choices: The options of a composition by group.
        keys: The sections of keys.
        is_whole: The sections are complete; else they change what was chosen.
    """

    choices: Mapping[str, object] = field(default_factory=dict)
    keys: JSON = field(default_factory=dict)
    is_whole: bool = True


def is_config_file(text: str) -> bool:
    """Whether an argument of the command line is such a file."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def read_config_file(
    files: Sequence[str], typed: Collection[str], groups: Collection[str], problems: list[Problem]
) -> ConfigFile:
    """The one file that is given, without the sections that the command line chooses.

    Args:
        files: As typed.
        typed: The groups that the command line chooses.
        groups: All groups.
        problems: What is wrong is added.
    """
    found = ConfigFile()
    for file in files[:1]:
        try:
            raw = read_yaml(Path(file).expanduser().read_text(encoding="utf-8"))
            if not isinstance(raw, dict):
                raise ValueError("there are no keys in it")
            found = _read(raw, typed, groups, problems)
        except ConfigError as error:
            problems.extend(error.problems)
        except (OSError, ValueError) as error:
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            problems.append(Problem("", file, f"a configuration that can be read: {reason}"))
    if files and found.is_whole and "experiment" in typed:
        expects = "no experiment beside a whole configuration"
        problems.append(Problem("", files[0], expects, "leave one of them out"))
    if len(files) > 1:
        problems.append(Problem("", files[1], "one file of a whole configuration"))
    return found


def _read(
    raw: JSON, typed: Collection[str], groups: Collection[str], problems: list[Problem]
) -> ConfigFile:
    direct = {key: raw[key] for key in raw if key in groups and isinstance(raw[key], str | list)}
    if "defaults" not in raw and not direct:
        saved = from_dict(raw, saved=True).to_dict()
        left_out = {*typed, *_OWN_SECTIONS}
        return ConfigFile(keys={key: saved[key] for key in saved if key not in left_out})
    choices = {**dict(_defaults(raw.get("defaults", []), groups, problems)), **direct}
    taken = {*typed, *direct, "defaults"}
    return ConfigFile(
        choices={group: option for group, option in choices.items() if group not in typed},
        keys={key: raw[key] for key in raw if key not in taken},
        is_whole=False,
    )


def _defaults(
    entries: object, groups: Collection[str], problems: list[Problem]
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
