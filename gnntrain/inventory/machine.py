"""Facts about this machine, each looked up in one place; nothing is judged."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from gnntrain.paths import nearest_folder


def has_package(*modules: str) -> bool:
    """Whether one of the modules is installed; none is imported."""
    return any(find_spec(module) is not None for module in modules)


def requirements() -> Iterator[Requirement]:
    """The packages that gnntrain requires here; none in a checkout that is not installed."""
    try:
        texts = metadata.requires("gnntrain") or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def import_error(module: str) -> str | None:
    """Why a module cannot be imported; None where it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation raises any exception
        return one_line(f"{type(error).__name__}: {error}")
    return None


def one_line(text: object) -> str:
    """A text without line breaks."""
    return " ".join(str(text).split())


def may_write(path: Path) -> bool:
    """Whether a file can be made where a folder is, or would be made: tried."""
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(path)) as file:
            file.write(b"gnntrain")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
