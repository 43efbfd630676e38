"""From overrides to a configuration: Hydra composes the chosen YAML files once, then the values are
set, and the schema judges them all. Every mistake is told at once."""

from __future__ import annotations

import copy
import functools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app import overrides as syntax
from gnntrain.config import BuiltinConfig, Config, from_dict
from gnntrain.config.problems import ConfigError, Problem, shown
from gnntrain.config.published import DATASET_NAMES, PUBLISHED
from gnntrain.config.types import flattened
from gnntrain.config.yaml_files import read_yaml
from gnntrain.groups import GROUPS, conf_dir, config_groups
from gnntrain.paths import is_file, is_folder

HYDRAS_ERRORS = (HydraException, OmegaConfBaseException)
_hydra = threading.RLock()  # Hydra's state is the process's


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[Path] = (), *, for_here: bool = True
) -> Config:
    """The configuration that overrides ask for; see `Sources`, and its `compose`."""
    return Sources(config_dirs).compose(overrides, for_here=for_here)


@dataclass(frozen=True)
class Sources:
    """The YAML files that configurations are composed of, which Hydra puts together once."""

    config_dirs: Sequence[Path] = ()  # the user's own folders, laid out as `conf/`
    config_path: Path | None = None  # a folder in place of `conf/`
    config_name: str = "config"  # the file to begin with
    is_saved: bool = False  # as for `gnntrain.config.from_dict`
    # What Hydra has made of choices.
    _nodes: dict[tuple[str, ...], DictConfig] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def folders(self) -> list[Path]:
        """All folders; the first one has the file to begin with, if any has."""
        main = conf_dir() if self.config_path is None else self.config_path
        file = f"{self.config_name.removesuffix('.yaml')}.yaml"
        return sorted([main, *self.config_dirs], key=lambda folder: not is_file(folder / file))

    @cached_property
    def groups(self) -> syntax.Groups:
        """The options of every group."""
        return config_groups(self.config_dirs, self.config_path)

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the places of the user's own YAML files."""
        for folder in self.folders:
            if not is_folder(folder):
                flag = "--config-path" if folder == self.config_path else "--config-dir"
                yield Problem(flag, str(folder), "a folder that exists")
        own = (f for one in self.config_dirs for g in GROUPS for f in one.glob(f"{g}/*.yaml"))
        for file in own:
            try:
                read_yaml(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                yield Problem("--config-dir", str(file), f"a YAML file: {error}")
            if (conf_dir() / file.parent.name / file.name).is_file():
                expects = f"a name of its own: {file.parent.name}={file.stem} is shipped already"
                yield Problem("--config-dir", str(file), expects, f"rename {file.name}")

    def compose(self, overrides: Sequence[str], *, for_here: bool = True) -> Config:
        """The configuration that overrides ask for.

        Args:
            overrides: `group=option` and `group.key=value`, in Hydra's syntax; and a YAML file to
                begin with, see `with_file`. Hydra's own keys are left to Hydra.
            for_here: Whether this machine must have all that the configuration asks for.

        Raises:
            ConfigError: With every mistake.
        """
        problems, groups = [*self.problems()], self.groups
        are_files_sound = not problems
        texts = syntax.with_file(overrides, groups, problems)
        parsed = [*syntax.parse_overrides(texts, groups, problems)]
        if not are_files_sound:
            raise ConfigError(problems)
        ours = [one for one in parsed if not syntax.is_hydras(one)]
        choices = [one for one in ours if syntax.is_choice(one, groups)]
        last = {one.key_or_group: one for one in choices}
        chosen = tuple(t for one in last.values() for t in syntax.hydra_lines(one, groups))
        try:
            if chosen not in self._nodes:
                self._nodes[chosen] = self.compose_files(chosen)
                OmegaConf.set_struct(self._nodes[chosen], False)
            node = copy.deepcopy(self._nodes[chosen])
        except (*HYDRAS_ERRORS, yaml.YAMLError, ValueError, RecursionError) as error:
            expects = f"files that fit together: {' '.join(str(error).split())}"
            problems.append(Problem("", " ".join(chosen), expects))
            raise ConfigError(problems) from error
        for override in ours:
            if override not in choices:
                set_key(node, override, groups, problems)
        plain = resolved(node, problems)
        return from_dict(plain, saved=self.is_saved, found=problems, for_here=for_here)

    def compose_files(self, lines: Sequence[str]) -> DictConfig:
        """What Hydra makes of overrides in its own form, also while its main runs.

        Raises:
            Exception: Whatever Hydra, OmegaConf or PyYAML raises.
        """
        store_schema()
        first, *others = [folder.absolute() for folder in self.folders]
        with _hydra:
            running = GlobalHydra.instance().hydra
            GlobalHydra.instance().clear()
            try:
                with initialize_config_dir(version_base="1.3", config_dir=str(first)):
                    return compose(self.config_name, [*search_path(others), *lines])
            finally:
                GlobalHydra.instance().hydra = running


def search_path(folders: Sequence[Path]) -> list[str]:
    """The override by which Hydra looks for YAML files in these folders too; none where there are
    none."""
    paths = [f"file://{folder.absolute()}" for folder in folders]
    return [f"hydra.searchpath={json.dumps(paths, ensure_ascii=False)}"] if paths else []


@functools.cache
def store_schema() -> None:
    """Give Hydra the schema's keys with their defaults, which the YAML files inherit: `model/_gat`,
    `dataset/_published`; `trainer/_keys` where all options of a group have the same ones."""
    store, groups = ConfigStore.instance().store, config_groups()
    own_keys = [name for name in DATASET_NAMES if name not in PUBLISHED]
    for group, section in Config():
        if group in Config.named:
            for name in groups[group] if group != "dataset" else own_keys:
                config = from_dict({group: {"name": name}}, saved=True)
                store(f"_{name}", getattr(config, group).model_dump(mode="json"), group)
        elif group != "logger":
            store("_keys", section.model_dump(mode="json"), group)
    published = BuiltinConfig(name="reddit")  # which has no defaults of its own
    store("_published", {**published.model_dump(mode="json"), "name": "???"}, "dataset")


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
    for override in syntax.parse_overrides(overrides, groups, problems):
        group, value = override.key_or_group, override.value()
        if syntax.is_hydras(override):
            expects = "a key of the run, not of Hydra"
            problems.append(Problem(*syntax.sides_of(override), expects))
        elif not syntax.is_choice(override, groups):
            set_key(node, override, groups, problems)
        elif group == "logger":
            chosen = compose_config([str(override.input_line)], for_here=False).logger.chosen()
            node.logger = {name: node.logger.get(name, chosen[name]) for name in chosen}
        elif value != (option := OmegaConf.select(node, f"{group}.name")):
            expects = f"{option}, with which the run was begun" if option else "keys alone here"
            problems.append(Problem(group, shown(value), expects, "train a new run with it"))
    plain = resolved(node, problems)
    return from_dict(plain, saved=True, found=problems, begun=begun, for_here=for_here)


def set_key(
    node: DictConfig, override: Override, groups: syntax.Groups, problems: list[Problem]
) -> None:
    """Set one key; add the problem if that cannot be done."""
    key, value = override.key_or_group, override.value()
    section = key.rpartition(".")[0]
    options = groups[section] if key in ("dataset.name", "model.name") else ()
    try:
        if override.is_delete():
            expects = "key=value; Hydra alone removes a key, in one training run"
            problems.append(Problem("", str(override.input_line), expects))
        elif value in options and value != OmegaConf.select(node, key):  # chosen, its keys fit
            expects = f"left to the group: the keys of {section} depend on it"
            problems.append(Problem(key, shown(value), expects, f"write {section}={value}"))
        else:
            # Lists by edge type are one value: not merged with those that are there.
            is_merged = key not in syntax.LIST_KEYS
            OmegaConf.update(node, key, value, merge=is_merged, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        problems.append(Problem(key, shown(value), " ".join(str(error).split())))


def resolved(node: DictConfig, problems: list[Problem]) -> Any:
    """A node as plain data, interpolations resolved. Where a value is missing or cannot be resolved
    it is null, and the mistake is added to `problems`.

    Raises:
        ConfigError: With every mistake, where one has no key.
    """
    failed: set[str] = set()
    while True:
        try:
            return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            key = (error.full_key or "").partition("[")[0]  # of a list the whole value
            raw: Any = OmegaConf.to_container(node)
            value = shown(flattened(raw).get(key, ""))
            problems.append(Problem(key, value, f"a value: {str(error).splitlines()[0]}"))
            if not key or key in failed:
                raise ConfigError(problems) from error
            failed.add(key)
            OmegaConf.update(node, key, None)
