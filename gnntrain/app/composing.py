"""From overrides to a configuration, with every mistake told at once.

Hydra puts the chosen YAML files together; values are set one by one afterwards, and the schema
judges them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.node import (
    EXPERIMENT_CHOICE,
    add_file,
    remove_strings,
    resolved,
    set_key,
)
from gnntrain.app.overrides import (
    choice_problem,
    is_choice,
    is_hydras,
    parse_overrides,
    sides_of,
)
from gnntrain.config import Config, changed_meaning, machine_problems, needs_gpu_count
from gnntrain.config.problems import ConfigError, Problem, shown
from gnntrain.config.reading import from_dict, read
from gnntrain.config.whole import is_config_file, read_config_file
from gnntrain.config.yaml_files import read_yaml
from gnntrain.groups import GROUPS, conf_dir, config_groups
from gnntrain.paths import is_folder

COMPOSE_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    RecursionError,
)


@dataclass(frozen=True)
class Composed:
    """A configuration and where it came from.

    Attributes:
        config: Checked, against this machine too.
        overrides: As typed.
    """

    config: Config
    overrides: list[str]

    @property
    def yaml(self) -> str:
        """The whole configuration as YAML, every key with its value."""
        text: str = yaml.safe_dump(self.config.to_dict(), sort_keys=False, allow_unicode=True)
        return text


@dataclass(frozen=True)
class Sources:
    """Where the YAML files are.

    Attributes:
        config_dirs: Folders of the user's own YAML files, laid out as `conf/`.
        config_path: A folder in place of `conf/`.
        config_name: The file to begin with.
    """

    config_dirs: Sequence[Path] = ()
    config_path: Path | None = None
    config_name: str = "config"

    @property
    def primary(self) -> Path:
        """The folder of the file to begin with."""
        return conf_dir() if self.config_path is None else self.config_path


def compose_config(
    overrides: Sequence[str],
    config_dirs: Sequence[Path] = (),
    *,
    config_path: Path | None = None,
    config_name: str = "config",
    for_here: bool = True,
) -> Composed:
    """The configuration that overrides ask for.

    Args:
        overrides: `group=option` and `group.key=value`, in Hydra's syntax; and a YAML file to begin
            with: a whole configuration, as a run directory has it, or the user's own composition.
            Hydra's own keys are left to Hydra.
        config_dirs: Folders of the user's own YAML files, laid out as `conf/`.
        config_path: A folder in place of `conf/`.
        config_name: The file to begin with.
        for_here: Whether this machine must have all that the configuration asks for.

    Raises:
        ConfigError: With every mistake.
    """
    unusable = [problem for folder in config_dirs for problem in folder_problems(folder)]
    problems = list(unusable)
    groups = config_groups(config_dirs, config_path)
    files = [text for text in overrides if is_config_file(text)]
    texts = [text for text in overrides if text not in files]
    parsed = [o for o in parse_overrides(texts, groups, problems) if not is_hydras(o)]
    choices = [o for o in parsed if is_choice(o, groups)]
    values = [o for o in parsed if not is_choice(o, groups)]
    typed = {o.key_or_group for o in choices}
    file = read_config_file(files, typed, groups, problems)
    chosen = [f"{group}={_option(option)}" for group, option in file.choices.items()]
    choices = [*parse_overrides(chosen, groups, problems), *choices]
    sound = [o for o in choices if not _add(problems, choice_problem(o, groups))]
    if unusable:
        raise ConfigError(problems)
    node = _compose(sound, groups, Sources(config_dirs, config_path, config_name), problems)
    unsure = {o.key_or_group for o in choices} - {o.key_or_group for o in sound}
    add_file(node, file, unsure)
    problems.extend(remove_strings(node, groups))
    for override in values:
        if override.key_or_group.split(".")[0] not in unsure:
            _add(problems, set_key(node, override, groups))
    config = checked(resolved(node, problems), problems, for_here=for_here)
    return Composed(config, list(overrides))


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
        choose = _choose_again if is_choice(override, groups) else set_key
        if is_hydras(override):
            problems.append(Problem(*sides_of(override), "a key of the run, not of Hydra"))
        else:
            _add(problems, choose(node, override, groups))
    config = checked(resolved(node, problems), problems, saved=True)
    changed = changed_meaning(begun, config)
    if changed:
        raise ConfigError(changed)
    return config


def _choose_again(
    node: DictConfig, override: Override, groups: Mapping[str, Sequence[str]]
) -> Problem | None:
    """Choose other loggers; of other groups only the option there was."""
    group, value = override.key_or_group, override.value()
    problem = choice_problem(override, groups)
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


def checked(
    raw: Mapping[str, Any],
    problems: Sequence[Problem],
    *,
    saved: bool = False,
    for_here: bool = True,
) -> Config:
    """The configuration, if neither the schema nor this machine finds a mistake.

    Args:
        raw: Plain data.
        problems: Mistakes already known.
        saved: As for `gnntrain.config.read`.
        for_here: As for `compose_config`.

    Raises:
        ConfigError: With every mistake.
    """
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


def folder_problems(folder: Path) -> Iterator[Problem]:
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


def _compose(
    choices: Sequence[Override],
    groups: Mapping[str, Sequence[str]],
    sources: Sources,
    problems: Sequence[Problem],
) -> DictConfig:
    """The chosen YAML files put together."""
    lines = [_line(override, groups) for override in choices if not override.is_delete()]
    if sources.config_dirs:
        lines.append(search_path(sources.config_dirs))
    try:
        node = compose_files(lines, sources)
    except COMPOSE_ERRORS as error:
        reason = " ".join(str(error).split())
        absent = re.search(r"Could not find 'experiment/(\w+)/([\w-]+)'", reason)
        hint = EXPERIMENT_CHOICE.format(*absent.groups()) if absent else None
        problem = Problem("", " ".join(lines), f"files that fit together: {reason}", hint)
        raise ConfigError([*problems, problem]) from error
    OmegaConf.set_struct(node, False)
    for override in choices:
        if has_no_file(override, groups):
            node.dataset.name = override.value()
        if override.is_delete() and override.key_or_group in node:  # it may be typed twice
            del node[override.key_or_group]
    return node


def compose_files(
    overrides: list[str], sources: Sources, *, with_hydra: bool = False
) -> DictConfig:
    """What Hydra makes of overrides, also while its main runs; with its own node or without.

    Raises:
        Exception: One of `COMPOSE_ERRORS`.
    """
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(sources.primary)):
            return compose(sources.config_name, overrides, return_hydra_config=with_hydra)
    finally:
        GlobalHydra.instance().hydra = running


def search_path(folders: Sequence[Path]) -> str:
    """The override by which Hydra looks for YAML files in these folders too."""
    paths = [f"file://{folder.absolute()}" for folder in folders]
    return f"hydra.searchpath={json.dumps(paths, ensure_ascii=False)}"


def has_no_file(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether a package's data set is chosen for which there is no YAML file."""
    group, value = override.key_or_group, override.value()
    return group == "dataset" and not override.is_delete() and value not in groups[group]


def _line(override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    group, value = override.get_key_element().lstrip("+"), override.value()
    if value is None:
        return f"{group}=none"
    if has_no_file(override, groups):
        return "dataset=_published"
    return f"{'' if group in GROUPS else '+'}{group}={_option(value)}"


def _option(option: object) -> str:
    """An option, or a list of them, as the command line has it."""
    if isinstance(option, list):
        return "[" + ",".join(map(str, option)) + "]"
    return "null" if option is None else str(option)
