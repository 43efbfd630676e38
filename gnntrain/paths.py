"""Functions for paths from users that do not raise for invalid paths, and the user's cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gnntrain.errors import UserError


def user_cache(instead: str) -> Path:
    """The user's folder of what gnntrain keeps; a UserError that asks for the key `instead` where
    the user has no home."""
    import platformdirs  # every command imports this module

    try:
        return platformdirs.user_cache_path("gnntrain")
    except RuntimeError as error:
        raise UserError(
            "this user has no home directory: HOME is not set, and the system knows none",
            f"Set {instead}, or HOME, to a directory you may write to.",
        ) from error


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


def nearest_folder(path: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def free_bytes(path: Path) -> int:
    """Bytes that are free where a folder is, or would be made."""
    return shutil.disk_usage(nearest_folder(path)).free
