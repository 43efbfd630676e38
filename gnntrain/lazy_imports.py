"""Modules that a library imports at its top and a run rarely uses: executed when first used.

`import torch_geometric` imports every part of PyG, and torch's compiler: 1.5 s. After `install`,
which the command line calls, the modules of `LAZY_MODULES` are executed when one of their names is
read. A script that imports gnntrain as a library keeps Python's own imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any


def _leave_as_it_is(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return function


def _do_nothing() -> None:
    """Nothing is compiled, so that there is no graph to break."""


LAZY_MODULES: Mapping[str, Mapping[str, Any]] = {
    "numpy.f2py": {},
    "torch_geometric.datasets": {},
    "torch_geometric.explain": {},
    "torch_geometric.profile": {},
    "torch_geometric.transforms": {},
    # torch's optimisers call these two in each step. Without the compiler they have no effect.
    "torch._dynamo": {"disable": _leave_as_it_is, "graph_break": _do_nothing},
}
"""The modules, and the names that do not execute them: each with what it stands for till then."""

# Set before a module is executed; `inspect` reads them of every module there is.
_METADATA = frozenset(
    {"__name__", "__file__", "__spec__", "__loader__", "__package__", "__class__"}
)

_executing = RLock()


class LazyFinder(MetaPathFinder):
    """Finds the lazy modules, and no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, with a loader that waits."""
        if fullname not in LAZY_MODULES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Let this process execute the lazy modules late; what is imported already stays."""
    if not any(isinstance(finder, LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LazyFinder())


class _LazyLoader(Loader):
    """Python's `LazyLoader` cannot leave single names out, and before 3.12 knows no threads."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__class__ = _LazyModule


class _LazyModule(ModuleType):
    """A module that is executed when a name is read from it."""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in _METADATA:
            return own(name)
        stand_in = LAZY_MODULES[own("__name__")].get(name)
        if stand_in is not None:
            return stand_in
        with _executing:
            if own("__class__") is _LazyModule:
                become = super().__setattr__
                become("__class__", _ModuleInExecution)
                try:
                    own("__spec__").loader.exec_module(self)
                except BaseException:
                    become("__class__", _LazyModule)
                    raise
                become("__class__", ModuleType)
        return getattr(self, name)


class _ModuleInExecution(ModuleType):
    """The thread that executes the module reads it; other threads wait until it is whole."""

    def __getattribute__(self, name: str) -> Any:
        with _executing:
            return ModuleType.__getattribute__(self, name)
