"""The options of each configuration group, from the file names alone: no file is read.

A file whose name starts with an underscore (`model/_base.yaml`) is a base: siblings inherit its
keys through their defaults list, and it cannot be chosen itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

GROUPS = (
    *("dataset", "task", "model", "sampler", "features", "compute", "trainer", "checkpoint"),
    *("distributed", "evaluation", "logger", "run", "sweep", "experiment"),
)


def conf_dir() -> Path:
    """The folder of the shipped YAML files: in the package where installed, else beside it."""
    packaged = Path(__file__).parent / "conf"
    return packaged if packaged.is_dir() else packaged.parent.parent / "conf"


def config_groups(
    config_dirs: Sequence[Path] = (), config_path: Path | None = None
) -> dict[str, list[str]]:
    """The options of every group, sorted, with those in the user's own folders."""
    folders = [config_path or conf_dir(), *config_dirs]
    own = [file.parent.name for folder in config_dirs for file in folder.glob("[!_.]*/*.yaml")]
    return {
        group: sorted(
            {file.stem for folder in folders for file in (folder / group).glob("[!_]*.yaml")}
        )
        for group in dict.fromkeys([*GROUPS, *own])
        if group != "hydra"
    }
