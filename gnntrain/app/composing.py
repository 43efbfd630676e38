"""From overrides to a configuration, with every mistake told at once.

Group names and syntax are judged first. Hydra composes the chosen YAML files once, then the values
are set, and the schema judges them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.overrides import (
    LIST_KEYS,
    Groups,
    hydra_lines,
    is_choice,
    is_hydras,
    parse_overrides,
    sides_of,
    with_file,
)
from gnntrain.app.sources import COMPOSE_ERRORS, Sources, compose_files, with_search_path
from gnntrain.config import Config, changed_meaning
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.reading import from_dict
from gnntrain.config.types import flattened
from gnntrain.groups import config_groups

_MOST_INTERPOLATIONS = 32
_EXPERIMENT = (
    "an experiment begins with `# @package _global_` and chooses by `- override /dataset: cora` "
    "in its list `defaults`"
)


@dataclass(frozen=True)
class Composed:
    """A checked configuration."""

    config: Config

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
        config_dirs, config_path, config_name: As for `Sources`.
        for_here: Whether this machine must have all that the configuration asks for.

    Raises:
        ConfigError: With every mistake.
    """
    sources = Sources(config_dirs, config_path, config_name)
    overrides, sources = with_search_path(overrides, sources)
    return Composer(sources).compose(overrides, for_here=for_here)


class Composer:
    """Composes configurations; Hydra puts the same files (None: the shipped ones) together once.
    `saved` as for `gnntrain.config.read`."""

    def __init__(self, sources: Sources | None = None, *, saved: bool = False) -> None:
        self._saved = saved
        self.sources = sources or Sources()
        self.groups = self.sources.groups
        self._nodes: dict[tuple[str, ...], DictConfig] = {}

    def compose(self, overrides: Sequence[str], *, for_here: bool = True) -> Composed:
        """As `compose_config`."""
        problems, groups = [*self.sources.problems()], self.groups
        are_files_sound = not problems
        texts, places = with_file(overrides, groups, problems)
        parsed = [o for o in parse_overrides(texts, groups, problems) if not is_hydras(o)]
        unsure = {problem.key for problem in problems if problem.key in groups}
        sound = [o for o in parsed if o.key_or_group.split(".")[0] not in unsure]
        choices = [o for o in sound if is_choice(o, groups)]
        if not are_files_sound:
            raise ConfigError(problems)
        lines = (line for o in choices for line in hydra_lines(o, groups, forced=True))
        chosen = tuple(dict.fromkeys(lines))
        if chosen not in self._nodes:
            try:
                self._nodes[chosen] = compose_files(list(chosen), self.sources)
            except COMPOSE_ERRORS as error:
                reason = " ".join(str(error).split())
                hint = _EXPERIMENT if "'experiment/" in reason else None
                expects = f"files that fit together: {reason}"
                problems.append(Problem("", " ".join(chosen), expects, hint))
                raise ConfigError(problems) from error
            OmegaConf.set_struct(self._nodes[chosen], False)
        node = copy.deepcopy(self._nodes[chosen])
        for override in sound:
            if override not in choices:
                set_key(node, override, groups, problems)
        try:
            return Composed(_judged(node, problems, saved=self._saved, for_here=for_here))
        except ConfigError as error:
            told = [replace(one, place=places.get(one.key)) for one in error.problems]
            raise ConfigError(told) from None


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
        group, value = override.key_or_group, override.value()
        if is_hydras(override):
            problems.append(Problem(*sides_of(override), "a key of the run, not of Hydra"))
        elif not is_choice(override, groups):
            set_key(node, override, groups, problems)
        elif group == "logger":
            names = value if isinstance(value, list) else [value] if value is not None else []
            node.logger = {str(name): node.logger.get(str(name), {}) for name in names}
        elif value != (option := OmegaConf.select(node, f"{group}.name")):
            expects = f"{option}, with which the run was begun" if option else "keys alone here"
            problems.append(Problem(group, shown(value), expects, "train a new run with it"))
    config = _judged(node, problems, saved=True, for_here=for_here)
    changed = changed_meaning(begun, config)
    if changed:
        raise ConfigError(changed)
    return config


def _judged(node: DictConfig, problems: list[Problem], *, saved: bool, for_here: bool) -> Config:
    gpus = gpus_here if for_here else None
    return from_dict(resolved(node, problems), saved=saved, found=problems, gpus=gpus)


def set_key(node: DictConfig, override: Override, groups: Groups, problems: list[Problem]) -> None:
    """Set, or with ~ remove, one key; add the problem if that cannot be done."""
    key, value = override.key_or_group, override.value()
    section, _, last = key.rpartition(".")
    problem = None
    try:
        if override.package is not None:
            expects = "a group with @package, or a key without"
            problem = Problem(override.get_key_element(), shown(value), expects)
        elif override.is_delete():
            parent = OmegaConf.select(node, section) if section else node
            known = [*map(str, parent)] if isinstance(parent, DictConfig) else []
            if last in known:
                del parent[last]  # pop would look up what its value refers to
            else:
                problem = Problem("", f"~{key}", "no such key", did_you_mean(last, known))
        elif last == "name" and section in ("dataset", "model") and value in groups[section]:
            if value != OmegaConf.select(node, key):  # the keys chosen with this one do not fit
                expects = f"left to the group: the keys of {section} depend on it"
                problem = Problem(key, shown(value), expects, f"write {section}={value}")
        else:
            # Lists by edge type are one value: not merged with those that are there.
            OmegaConf.update(node, key, value, merge=key not in LIST_KEYS, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        # also where a key's value refers to what is not there
        problem = Problem(key, shown(value), " ".join(str(error).split()))
    if problem is not None:
        problems.append(problem)


def resolved(node: DictConfig, problems: list[Problem]) -> dict[str, Any]:
    """Plain data, interpolations resolved; a key whose value is missing or cannot be resolved is a
    problem, and null."""
    raw = cast(dict[str, Any], OmegaConf.to_container(node, resolve=False))
    number = str(raw).count("${")
    if number > _MOST_INTERPOLATIONS:  # each may double what the one before stands for
        expects = f"at most {_MOST_INTERPOLATIONS} interpolations in all"
        raise ConfigError([*problems, Problem("", f"{number} interpolations", expects)])
    failed: set[str] = set()
    while True:
        try:
            plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            return {str(key): value for key, value in cast(dict[Any, Any], plain).items()}
        except OmegaConfBaseException as error:
            key = error.full_key or ""
            value = shown(flattened(raw).get(key, ""))
            problems.append(Problem(key, value, f"a value: {str(error).splitlines()[0]}"))
            if not key or key in failed:
                raise ConfigError(problems) from error
            failed.add(key)
            OmegaConf.update(node, key, None)


def gpus_here() -> dict[str, int]:
    """How many GPUs torch sees, by their type."""
    from gnntrain import devices  # imports torch; most configurations need no look

    return devices.gpus_here()
