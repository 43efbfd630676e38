"""Paths as people write them: too long, with an unknown user's home, or in no folder at all."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """The path with `~` as the home folder; as it is where there is none of that name."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own fails there


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder; False, too, where there cannot be one."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's own fails where a name is too long


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file; False, too, where there cannot be one."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def file_names(folder: str | Path) -> list[str]:
    """The names of the files in a folder; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except (OSError, ValueError):  # ValueError: a null byte
        return []
