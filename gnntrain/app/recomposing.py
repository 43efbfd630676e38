"""The configuration of a run that goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from gnntrain.app.composing import checked
from gnntrain.app.node import resolved, set_key
from gnntrain.app.overrides import choice_problem, is_choice, is_hydras, parse_overrides, sides_of
from gnntrain.config import Config, changed_meaning
from gnntrain.config.problems import ConfigError, Problem, shown
from gnntrain.config.reading import from_dict
from gnntrain.groups import config_groups


def recompose_config(
    saved: Mapping[str, Any], overrides: Sequence[str], *, for_here: bool = True
) -> Config:
    """The configuration of a run that goes on, with the keys that `overrides` change.

    Args:
        saved: The run's configuration, plain data.
        overrides, for_here: As for `compose_config`.

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
        elif (problem := choose(node, override, groups)) is not None:
            problems.append(problem)
    config = checked(resolved(node, problems), problems, saved=True, for_here=for_here)
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
