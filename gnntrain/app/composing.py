"""From overrides to a configuration, with every mistake told at once.

Hydra puts the chosen YAML files together; values are set one by one afterwards, and the schema
judges them all.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from gnntrain.app.node import (
    EXPERIMENT_CHOICE,
    add_file,
    remove_strings,
    resolved,
    set_key,
)
from gnntrain.app.overrides import (
    choice_problem,
    chosen_options,
    has_no_file,
    is_choice,
    is_hydras,
    option_text,
    parse_overrides,
)
from gnntrain.app.sources import (
    COMPOSE_ERRORS,
    Sources,
    compose_files,
    source_problems,
    with_search_path,
)
from gnntrain.config import Config, machine_problems, needs_gpu_count
from gnntrain.config.problems import ConfigError, Problem
from gnntrain.config.reading import read
from gnntrain.config.whole import is_config_file, read_config_file
from gnntrain.groups import GROUPS, config_groups


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
    sources = Sources(config_dirs, config_path, config_name)
    overrides, sources = with_search_path(overrides, sources)
    return Composer(sources).compose(overrides, for_here=for_here)


class Composer:
    """Composes configurations; Hydra puts the same files together once.

    Args:
        sources: Where the YAML files are; None: the shipped ones.
        saved: As for `gnntrain.config.read`.

    Attributes:
        groups: The options of every group.
    """

    def __init__(self, sources: Sources | None = None, *, saved: bool = False) -> None:
        self._saved = saved
        self.sources = sources or Sources()
        self.groups = config_groups(self.sources.config_dirs, self.sources.config_path)
        self._nodes: dict[tuple[str, ...], DictConfig] = {}

    def compose(self, overrides: Sequence[str], *, for_here: bool = True) -> Composed:
        """As `compose_config`."""
        unusable = [*source_problems(self.sources)]
        problems = list(unusable)
        groups = self.groups
        files = [text for text in overrides if is_config_file(text)]
        texts = [text for text in overrides if text not in files]
        parsed = [o for o in parse_overrides(texts, groups, problems) if not is_hydras(o)]
        choices = [o for o in parsed if is_choice(o, groups)]
        values = [o for o in parsed if not is_choice(o, groups)]
        file = read_config_file(files, chosen_options(choices, groups), groups, problems)
        chosen = [f"{group}={option_text(option)}" for group, option in file.choices.items()]
        choices = [*parse_overrides(chosen, groups, problems), *choices]
        sound = [o for o in choices if not _add(problems, choice_problem(o, groups))]
        if unusable:
            raise ConfigError(problems)
        node = self._compose(sound, problems)
        unsure = {o.key_or_group for o in choices} - {o.key_or_group for o in sound}
        add_file(node, file, unsure)
        problems.extend(remove_strings(node, groups))
        for override in values:
            if override.key_or_group.split(".")[0] not in unsure:
                _add(problems, set_key(node, override, groups))
        try:
            raw = resolved(node, problems)
            config = checked(raw, problems, saved=self._saved, for_here=for_here)
        except ConfigError as error:
            lines = {**file.lines, **dict.fromkeys((o.key_or_group for o in values), None)}
            placed = (
                replace(problem, place=f"{files[0]}, line {line}") if line else problem
                for problem in error.problems
                for line in [lines.get(problem.key)]
            )
            raise ConfigError(placed) from None
        return Composed(config, list(overrides))

    def _compose(self, choices: Sequence[Override], problems: Sequence[Problem]) -> DictConfig:
        """The chosen YAML files put together."""
        lines = [_line(override, self.groups) for override in choices if not override.is_delete()]
        if tuple(lines) not in self._nodes:
            try:
                self._nodes[tuple(lines)] = compose_files(lines, self.sources)
            except COMPOSE_ERRORS as error:
                reason = " ".join(str(error).split())
                absent = re.search(r"Could not find 'experiment/(\w+)/([\w-]+)'", reason)
                hint = EXPERIMENT_CHOICE.format(*absent.groups()) if absent else None
                problem = Problem("", " ".join(lines), f"files that fit together: {reason}", hint)
                raise ConfigError([*problems, problem]) from error
        node = copy.deepcopy(self._nodes[tuple(lines)])
        OmegaConf.set_struct(node, False)
        for override in choices:
            if has_no_file(override, self.groups):
                node.dataset.name = override.value()
            if override.is_delete() and override.key_or_group in node:  # it may be typed twice
                del node[override.key_or_group]
        return node


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
        found_gpus = _gpus_here() if needs_gpu_count(reading.config) else {}
        lacking = machine_problems(reading.config, found_gpus)
    found = [*reading.problems, *(p for p in lacking if reading.is_sound(p.key))]
    if found:
        raise ConfigError(found)
    return reading.config


def _gpus_here() -> dict[str, int]:
    from gnntrain.devices import gpus_here  # imports torch; most configurations need no look

    return gpus_here()


def _add(problems: list[Problem], problem: Problem | None) -> bool:
    """Whether there is a problem; it is added."""
    if problem is not None:
        problems.append(problem)
    return problem is not None


def _line(override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    group, value = override.get_key_element().lstrip("+"), override.value()
    if value is None:
        return f"{group}=none"
    if has_no_file(override, groups):
        return "dataset=_published"
    return f"{'' if group in GROUPS else '+'}{group}={option_text(value)}"
