"""Models, data sets, metrics and samplers of other packages, found by entry point.

A package offers one in its `pyproject.toml`:

    [project.entry-points."gnntrain.models"]
    my_sage = "my_package.models:MySAGE"

A name is read from the package's metadata; its code is imported only where the name is chosen.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from hashlib import blake2b
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnntrain import startup
from gnntrain.errors import GnntrainError, UserError

DATASETS = "gnntrain.datasets"
METRICS = "gnntrain.metrics"
MODELS = "gnntrain.models"
SAMPLERS = "gnntrain.samplers"

_packages: set[str] = set()  # whose code this process has called


def plugin_names(group: str) -> tuple[str, ...]:
    """The names that installed packages offer in an entry-point group, sorted."""
    return _plugin_names(group, tuple(sys.path))


@functools.cache
def _plugin_names(group: str, _path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def find_plugin(group: str, name: str) -> EntryPoint:
    """The entry point of a name, a UserError where no installed package offers it; where several
    do, the first one found."""
    for point in entry_points(group=group, name=name):
        return point
    raise UserError(
        f"no installed package offers {name!r} (entry points {group})",
        f"install the package that declares {name!r} in the entry-point group {group!r}",
    )


def load_plugin(group: str, name: str) -> Any:
    """Import the object behind a name; a UserError where there is none, or its code fails."""
    point = find_plugin(group, name)
    startup.execute(startup.META)  # its code may compute with tensors without data
    _packages.add(point.module.partition(".")[0])
    try:
        return point.load()
    except Exception as error:  # a module's code may raise any
        raise UserError(
            f"{name!r} ({point.value}, entry points {group}) cannot be used: {told(error)}",
            "install or repair the package that declares it",
        ) from error


def told(error: BaseException) -> str:
    """An error of ours with its hint; of another its class, too, and the last place in a package's
    code that it came through."""
    if isinstance(error, GnntrainError):
        return str(error)
    text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").partition(".")[0] in _packages:
            return f"{text} ({frame.f_code.co_filename}:{line})"
    return text


@functools.cache  # once imported, a module stays as it is
def source_digest(module: str) -> str | None:
    """A digest of a module's source file, found without importing it or the package it is in; None
    where there is none."""
    first, *rest = module.split(".")
    spec = find_spec(first)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return blake2b(Path(spec.origin).read_bytes(), digest_size=20).hexdigest()


def takes_schema(make: Any) -> bool:
    """Whether an entry point makes models of typed graphs: its first argument is `schema`."""
    return next(iter(inspect.signature(make).parameters), None) == "schema"
