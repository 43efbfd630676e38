"""Where the YAML files are, and what Hydra makes of them."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.overrides import Groups, parse_override
from gnntrain.config import BuiltinConfig, Config, MLflowConfig, WandBConfig
from gnntrain.config.problems import Problem, did_you_mean
from gnntrain.config.published import DATASET_NAMES, PUBLISHED
from gnntrain.config.yaml_files import read_yaml
from gnntrain.groups import GROUPS, conf_dir, config_groups
from gnntrain.paths import expanded, is_file, is_folder

HYDRAS_ERRORS = (HydraException, OmegaConfBaseException)
COMPOSE_ERRORS = (*HYDRAS_ERRORS, yaml.YAMLError, ValueError, RecursionError)
_OWN_KEYS = [name for name in DATASET_NAMES if name not in PUBLISHED]
_hydra = threading.RLock()  # Hydra's state is the process's


@dataclass(frozen=True)
class Sources:
    """Where the YAML files are: the user's own folders, laid out as `conf/`; a folder in place of
    `conf/`; the file to begin with."""

    config_dirs: Sequence[Path] = ()
    config_path: Path | None = None
    config_name: str = "config"

    @property
    def main(self) -> Path:
        """`conf/`, or the folder in its place."""
        return conf_dir() if self.config_path is None else self.config_path

    @property
    def own_dirs(self) -> list[Path]:
        """`config_dirs`; the folder of the file to begin with comes first."""
        return sorted(self.config_dirs, key=lambda folder: not self.has_primary(folder))

    @cached_property
    def groups(self) -> Groups:
        """The options of every group."""
        return config_groups(self.config_dirs, self.config_path)

    def has_primary(self, folder: Path) -> bool:
        """Whether the file to begin with is in this folder."""
        return is_file(folder / f"{self.config_name.removesuffix('.yaml')}.yaml")

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the places of the user's own YAML files."""
        folders = [self.main, *self.config_dirs]
        absent = [folder for folder in folders if not is_folder(folder)]
        for folder in absent:
            flag = "--config-path" if folder is self.main else "--config-dir"
            yield Problem(flag, str(folder), "a folder that exists")
        if not absent and not any(map(self.has_primary, folders)):
            names = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
            expects = f"a YAML file in {' or '.join(map(str, folders))}"
            hint = did_you_mean(self.config_name, names)
            yield Problem("--config-name", self.config_name, expects, hint)
        own = (f for one in self.config_dirs for g in GROUPS for f in one.glob(f"{g}/*.yaml"))
        for file in own:
            try:
                read_yaml(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                yield Problem("--config-dir", str(file), f"a YAML file: {error}")
            if (conf_dir() / file.parent.name / file.name).is_file():
                expects = f"a name of its own: {file.parent.name}={file.stem} is shipped already"
                yield Problem("--config-dir", str(file), expects, f"rename {file.name}")


@functools.cache
def store_schema() -> None:
    """Give Hydra the schema's keys with their defaults, which the YAML files inherit: `model/_gat`,
    `dataset/_published`; `trainer/_keys` where all options of a group have the same ones."""
    store, groups = ConfigStore.instance().store, config_groups()
    for group, section in Config():
        if group in Config.named:
            for name in groups[group] if group != "dataset" else _OWN_KEYS:
                config = Config.model_validate({group: {"name": name}}, context={"saved": True})
                store(f"_{name}", getattr(config, group).model_dump(mode="json"), group)
        elif group != "logger":
            store("_keys", section.model_dump(mode="json"), group)
    published = BuiltinConfig(name="reddit")  # which has no defaults of its own
    store("_published", {**published.model_dump(mode="json"), "name": "???"}, "dataset")
    for name, options in (("wandb", WandBConfig()), ("mlflow", MLflowConfig())):
        store(f"_{name}", {name: options.model_dump(mode="json")}, "logger")


def compose_files(overrides: list[str], sources: Sources) -> DictConfig:
    """What Hydra makes of overrides, also while its main runs.

    Raises:
        Exception: One of `COMPOSE_ERRORS`.
    """
    store_schema()
    folders = [sources.main, *sources.own_dirs]
    if not sources.has_primary(sources.main):  # Hydra begins in no folder of its search path
        folders[:2] = folders[1::-1]
    first, *others = [folder.absolute() for folder in folders]
    lines = [search_path(others), *overrides] if others else overrides
    with _hydra:
        running = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(first)):
                return compose(sources.config_name, lines)
        finally:
            GlobalHydra.instance().hydra = running


def search_path(folders: Sequence[Path]) -> str:
    """The override by which Hydra looks for YAML files in these folders too."""
    paths = [f"file://{folder.absolute()}" for folder in folders]
    return f"hydra.searchpath={json.dumps(paths, ensure_ascii=False)}"


def with_search_path(typed: Sequence[str], sources: Sources) -> tuple[list[str], Sources]:
    """The overrides without folders in `hydra.searchpath`, and the sources with them.

    Hydra looks into both in the same way; the options in these folders have to be known here.
    """
    texts, folders = list(typed), list(sources.config_dirs)
    for text in typed:
        parsed = parse_override(text) if "hydra.searchpath" in text else None
        value: Any = parsed and parsed[0].value()
        paths = [str(path).removeprefix("file://") for path in value or ()]
        if isinstance(value, list) and not any("://" in path for path in paths):
            texts.remove(text)
            folders += map(expanded, paths)
    return texts, replace(sources, config_dirs=folders)
