"""Functions for paths from users that do not raise for invalid paths."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """The path with `~` expanded; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own fails there


def is_folder(path: str | Path) -> bool:
    """Whether the path is a folder; False for an invalid path."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's own fails where a name is too long


def is_file(path: str | Path) -> bool:
    """Whether the path is a regular file; False for an invalid path."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def file_names(folder: str | Path) -> list[str]:
    """The names of the files in a folder; empty if it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except (OSError, ValueError):  # ValueError: a null byte
        return []
