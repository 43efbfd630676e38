"""From the command line's overrides to a configuration. The only room that knows Hydra.

Hydra puts the chosen YAML files together; values are set one by one afterwards, so that a
mistake in one hides none in another, and the schema judges them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.config import Config, changed_meaning, machine_problems, needs_gpu_count
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.reading import from_dict, read
from gnntrain.config.synonyms import synonym
from gnntrain.config.whole import ConfigFile, is_config_file, read_config_file
from gnntrain.config.yaml_files import read_yaml
from gnntrain.groups import GROUPS, conf_dir, config_groups
from gnntrain.paths import is_folder
from gnntrain.plugins import DATASETS, MODELS, plugin_names

__all__ = [
    "Composed",
    "compose_config",
    "parse_overrides",
    "recompose_config",
    "sides_of",
]

_KEY = re.compile(r"[~+]*[\w@:/-]+(\.[\w@:/-]+)*")
_DEEPEST = 20
_MOST_INTERPOLATIONS = 32
_EXPERIMENT_CHOICE = (
    "an experiment begins with `# @package _global_` and chooses by `- override /{}: {}` in its "
    "list `defaults`"
)
_LIST_KEYS = ("logger", "sampler.fan_outs", "evaluation.fan_outs")


@dataclass(frozen=True)
class Composed:
    """A configuration and where it came from.

    Attributes:
        config: Checked, against this machine too.
        overrides: As typed.
        yaml: The whole configuration as YAML, every key with its value.
    """

    config: Config
    overrides: list[str]
    yaml: str


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[Path] = (), *, for_here: bool = True
) -> Composed:
    """The configuration that overrides ask for.

    Args:
        overrides: `group=option` and `group.key=value`, in Hydra's syntax; and a YAML file to begin
            with: a whole configuration, as a run directory has it, or the user's own composition.
        config_dirs: Folders of the user's own YAML files, laid out as `conf/`.
        for_here: Whether this machine must have all that the configuration asks for.

    Raises:
        ConfigError: With every mistake.
    """
    problems = [problem for folder in config_dirs for problem in _folder_problems(folder)]
    groups = config_groups(config_dirs)
    files = [text for text in overrides if is_config_file(text)]
    texts = [text for text in overrides if text not in files]
    parsed = list(parse_overrides(texts, groups, problems))
    choices = [o for o in parsed if _is_choice(o, groups)]
    values = [o for o in parsed if not _is_choice(o, groups)]
    typed = {o.key_or_group for o in choices}
    file = read_config_file(files, typed, groups, problems)
    chosen = [f"{group}={_written(option)}" for group, option in file.choices.items()]
    choices = [*parse_overrides(chosen, groups, problems), *choices]
    sound = [o for o in choices if not _add(problems, _choice_problem(o, groups))]
    if problems and any(problem.key == "--config-dir" for problem in problems):
        raise ConfigError(problems)
    node = _compose(sound, groups, config_dirs, problems)
    unsure = {o.key_or_group for o in choices} - {o.key_or_group for o in sound}
    _add_file(node, file, unsure)
    problems.extend(_strings_for_sections(node, groups))
    for override in values:
        if override.key_or_group.split(".")[0] not in unsure:
            _add(problems, _set(node, override, groups))
    raw = _resolved(node, problems)
    config = _checked(raw, problems, for_here=for_here)
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    return Composed(config, list(overrides), text)


def recompose_config(saved: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of a run that goes on, with the keys that `overrides` change.

    Args:
        saved: The run's configuration, plain data.
        overrides: As for `compose_config`.

    Raises:
        ConfigError: With every mistake, or every change that would make another run of it.
    """
    begun = from_dict(saved, saved=True)
    problems: list[Problem] = []
    groups = config_groups()
    node = OmegaConf.create(begun.to_dict())
    for override in parse_overrides(overrides, groups, problems):
        choose = _choose_again if _is_choice(override, groups) else _set
        _add(problems, choose(node, override, groups))
    config = _checked(_resolved(node, problems), problems, saved=True)
    changed = changed_meaning(begun, config)
    if changed:
        raise ConfigError(changed)
    return config


def _choose_again(
    node: DictConfig, override: Override, groups: Mapping[str, Sequence[str]]
) -> Problem | None:
    """Choose other loggers; of other groups only the option there was."""
    group, value = override.key_or_group, override.value()
    problem = _choice_problem(override, groups)
    if problem is not None:
        return problem
    if group == "logger":
        names = value if isinstance(value, list) else [] if value is None else [value]
        node[group] = {str(name): node[group].get(str(name), {}) for name in names}
        return None
    begun = OmegaConf.select(node, f"{group}.name")
    if value == begun:
        return None
    expects = f"{begun}, with which the run was begun" if begun else "set by its keys here"
    return Problem(group, shown(value), expects, "train a new run with it")


def _checked(
    raw: Mapping[str, Any],
    problems: Sequence[Problem],
    *,
    saved: bool = False,
    for_here: bool = True,
) -> Config:
    """The configuration, if neither the schema nor this machine finds a mistake."""
    reading = read(raw, saved=saved, found=problems)
    lacking: list[Problem] = []
    if for_here:
        num_gpus = _count_gpus() if needs_gpu_count(reading.config) else 0
        lacking = machine_problems(reading.config, num_gpus)
    found = [*reading.problems, *(p for p in lacking if reading.is_sound(p.key))]
    if found:
        raise ConfigError(found)
    return reading.config


def _count_gpus() -> int:
    import torch  # seconds, and most configurations can be judged without

    return torch.cuda.device_count()


def _add(problems: list[Problem], problem: Problem | None) -> bool:
    """Whether there is a problem; it is added."""
    if problem is not None:
        problems.append(problem)
    return problem is not None


def _folder_problems(folder: Path) -> Iterator[Problem]:
    """What is wrong with a folder of the user's own YAML files."""
    if not is_folder(folder):
        yield Problem("--config-dir", str(folder), "a folder that exists")
        return
    for group in GROUPS:
        for file in sorted((folder / group).glob("*.yaml")):
            try:
                read_yaml(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                yield Problem("--config-dir", str(file), f"a YAML file: {error}")
            if (conf_dir() / group / file.name).is_file():
                expects = f"files with names of their own: {group}={file.stem} is shipped already"
                yield Problem("--config-dir", str(folder), expects, f"rename {group}/{file.name}")


def parse_overrides(
    overrides: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
    *,
    sweep: bool = False,
) -> Iterator[Override]:
    """The overrides that can be read; one that cannot is a problem."""
    for text in overrides:
        override = _parse_one(text)
        if override is None:
            problems.append(_syntax_problem(text, groups))
            continue
        if not _add(problems, None if sweep else _sweep_problem(override)) and not _add(
            problems, _reach_problem(override)
        ):
            yield override


def _parse_one(text: str) -> Override | None:
    parser = OverridesParser.create()
    key, _, value = text.partition("=")
    if max(value.count(left) for left in "[{") > _DEEPEST:
        return None  # parsers recurse
    # Hydra wants values such as ~/data or a=b.csv quoted; where nothing else can be meant, they
    # are taken as they are.
    plain = value and (value == "," or not set(value) & set("[]{}'\"\\,"))
    for form in (text, f'{key}="{value}"' if plain else text):
        try:
            override = parser.parse_override(form)
        except (HydraException, ValueError):  # ValueError: a number of thousands of digits
            continue
        override.input_line = text
        return override
    return None


def _syntax_problem(text: str, groups: Mapping[str, Sequence[str]]) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        homes = [group for group, options in groups.items() if text in options]
        hint = f"did you mean {homes[0]}={text}?" if homes else "without spaces around the ="
        return Problem("", text, "key=value", hint)
    if "," in value and "=" in value:
        return Problem(key, value, "one value", "give each key=value as an argument of its own")
    if not _KEY.fullmatch(key):
        return Problem(key, shown(value), "a key such as trainer.lr")
    if max(value.count(left) for left in "[{") > _DEEPEST:
        return Problem(key, shown(value), f"a value nested at most {_DEEPEST} deep")
    if any(value.count(left) != value.count(right) for left, right in ("[]", "{}", "()")):
        return Problem(key, shown(value), "a value that can be read", "a bracket has no partner")
    quoted = "'" + key + "=" + json.dumps(value, ensure_ascii=False) + "'"
    return Problem(key, value, "a value that can be read", f"quote it: {quoted}")


def _sweep_problem(override: Override) -> Problem | None:
    """A sweep where one value is wanted."""
    if not override.is_sweep_override():
        return None
    key, value = sides_of(override)
    if key in _LIST_KEYS and "," in value:
        return Problem(key, value, "a list", f"write {key}=[{value}]; for a sweep add -m")
    return Problem(key, value, "one value", "for a sweep add -m")


def _reach_problem(override: Override) -> Problem | None:
    """An override of something that is not ours to set."""
    key, value = sides_of(override)
    if not key:
        return Problem("", f"={value}", "key=value", "without spaces around the =")
    if key.split(".")[0].split("/")[0] == "hydra":
        ours = synonym(key.replace("/", "."))
        hint = f"did you mean {ours}?" if ours else None
        return Problem(key, value, "a key that exists; Hydra's own keys have no effect", hint)
    if override.package is not None:
        return Problem(key, value, "a key without @package")
    return None


def sides_of(override: Override) -> tuple[str, str]:
    """Key and value as typed, without + and ~."""
    key, _, value = str(override.input_line).partition("=")
    return key.strip().lstrip("+~"), value.strip()


def _is_choice(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def _choice_problem(override: Override, groups: Mapping[str, Sequence[str]]) -> Problem | None:
    """What is wrong with the choice of a group's option."""
    group, value = override.key_or_group, override.value()
    options = groups[group]
    several = group in _LIST_KEYS
    if override.is_delete() or (group == "experiment" and value is None):
        return None
    chosen = value if several and isinstance(value, list) else [value]
    wrong = [name for name in chosen if str(name) not in options or isinstance(name, bool | None)]
    if not wrong or all(_is_packaged(group, name) for name in wrong):
        return None
    expects = ("a list of some of " if several else "one of ") + ", ".join(options)
    hint = did_you_mean(str(wrong[0]), options)
    if group == "model" and wrong[0] in plugin_names(MODELS):
        hint = f"write model=plugin model.name={wrong[0]}"
    elif hint is None and len(options) == 1:
        hint = f"to set a key write {group}.KEY=VALUE"
    return Problem(group, shown(value), expects, hint)


def _is_packaged(group: str, name: object) -> bool:
    """Whether an installed package offers a data set of this name."""
    return group == "dataset" and name in plugin_names(DATASETS)


def _compose(
    choices: Sequence[Override],
    groups: Mapping[str, Sequence[str]],
    config_dirs: Sequence[Path],
    problems: Sequence[Problem],
) -> DictConfig:
    """The chosen YAML files put together."""
    lines = [_line(override, groups) for override in choices if not override.is_delete()]
    if config_dirs:
        paths = [f"file://{folder.absolute()}" for folder in config_dirs]
        lines.append(f"hydra.searchpath={json.dumps(paths, ensure_ascii=False)}")
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            node = compose("config", overrides=lines)
    except (
        HydraException,
        OmegaConfBaseException,
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:
        where = " ".join(lines)
        reason = " ".join(str(error).split())
        absent = re.search(r"Could not find 'experiment/(\w+)/([\w-]+)'", reason)
        hint = _EXPERIMENT_CHOICE.format(*absent.groups()) if absent else None
        problem = Problem("", where, f"files that fit together: {reason}", hint)
        raise ConfigError([*problems, problem]) from error
    OmegaConf.set_struct(node, False)
    for override in choices:
        if _has_no_file(override, groups):
            node.dataset.name = override.value()
        if override.is_delete() and override.key_or_group in node:  # it may be typed twice
            del node[override.key_or_group]
    return node


def _strings_for_sections(node: DictConfig, groups: Iterable[str]) -> Iterator[Problem]:
    """An option where a section's keys belong, which an experiment file may have; it is removed."""
    plain = OmegaConf.to_container(node, resolve=False)
    assert isinstance(plain, dict)
    for group in groups:
        option = plain.get(group)
        if isinstance(option, str):
            del node[group]
            yield Problem(group, shown(option), "keys", _EXPERIMENT_CHOICE.format(group, option))


def _has_no_file(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether a package's data set is chosen for which there is no YAML file."""
    group, value = override.key_or_group, override.value()
    return group == "dataset" and not override.is_delete() and value not in groups[group]


def _line(override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    group, value = override.key_or_group, override.value()
    if value is None:
        return f"{group}=none"
    if _has_no_file(override, groups):
        return "dataset=_published"
    return f"{group}={_written(value)}"


def _written(option: object) -> str:
    """An option, or a list of them, as the command line has it."""
    if isinstance(option, list):
        return "[" + ",".join(map(str, option)) + "]"
    return "null" if option is None else str(option)


def _add_file(node: DictConfig, file: ConfigFile, unsure: Collection[str]) -> None:
    """Add the sections of the user's file, except those of options that are not known."""
    for section, keys in file.keys.items():
        if section not in unsure:
            OmegaConf.update(node, section, keys, merge=not file.is_whole, force_add=True)


def _set(
    node: DictConfig, override: Override, groups: Mapping[str, Sequence[str]]
) -> Problem | None:
    """Set, or with ~ remove, one key; the problem if that cannot be done."""
    key, value = override.key_or_group, override.value()
    try:
        if override.is_delete():
            return _remove(node, key)
        section, _, last = key.rpartition(".")
        if last == "name" and section in ("dataset", "model") and value in groups[section]:
            return _other_name(node, section, value)
        OmegaConf.update(node, key, value, merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        # also where a key's value refers to what is not there
        given = ("", f"~{key}") if override.is_delete() else (key, shown(value))
        return Problem(*given, " ".join(str(error).split()))
    return None


def _remove(node: DictConfig, key: str) -> Problem | None:
    section, _, last = key.rpartition(".")
    parent = OmegaConf.select(node, section) if section else node
    if not isinstance(parent, DictConfig) or last not in parent:
        return Problem("", f"~{key}", "a key that is there")
    del parent[last]  # pop would look up what its value refers to
    return None


def _other_name(node: DictConfig, section: str, value: object) -> Problem | None:
    if value == OmegaConf.select(node, f"{section}.name"):
        return None
    expects = f"left to the group: the keys of {section} depend on it"
    return Problem(f"{section}.name", shown(value), expects, f"write {section}={value}")


def _resolved(node: DictConfig, problems: list[Problem]) -> dict[str, Any]:
    """Plain data, interpolations resolved; those that cannot be are problems."""
    number = str(OmegaConf.to_container(node, resolve=False)).count("${")
    if number > _MOST_INTERPOLATIONS:  # each may double what the one before stands for
        expects = f"at most {_MOST_INTERPOLATIONS} interpolations in all"
        raise ConfigError([*problems, Problem("", f"{number} interpolations", expects)])
    return _resolve(node, "", problems)


def _resolve(node: DictConfig, prefix: str, problems: list[Problem]) -> dict[str, Any]:
    """As `_resolved`, of one section."""
    plain: dict[str, Any] = {}
    for key in map(str, node):
        path = f"{prefix}{key}"
        written = shown(OmegaConf.to_container(node, resolve=False).get(key))  # type: ignore[union-attr]  # a mapping's container is a dict
        try:
            if OmegaConf.is_missing(node, key):
                problems.append(Problem(path, "???", "a value: it has no default"))
                continue
            value = node[key]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            problems.append(Problem(path, written, f"an interpolation that resolves: {reason}"))
            continue
        nested = isinstance(value, DictConfig)
        plain[key] = _resolve(value, f"{path}.", problems) if nested else value
    return plain
