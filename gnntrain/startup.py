"""A faster start of commands; not used when gnntrain is imported as a library.

Of a default run's CPU seconds garbage collection would take 0.9, as imports make a million
objects, and imports that most runs never use: torch's compiler 1.0, what operators do to tensors
without data 0.4, PyG's data sets, explainers and transforms 0.3.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any

# Before torch is loaded: pages of 2 MiB for a mini-batch's activations; and no idle OpenMP thread
# spins on a core that the Numba kernels and the loader's threads need.
VARIABLES = {"THP_MEM_ALLOC_ENABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
META, _DYNAMO = "torch._meta_registrations", "torch._dynamo"
_is_paused = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Disable garbage collection until `resume_collection`, or the end of the block."""
    global _is_paused
    _is_paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        resume_collection()


def resume_collection() -> None:
    """Enable garbage collection again, if it was paused, of newer objects alone."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()
        gc.enable()


def _disable(*arguments: Any, **options: Any) -> Any:
    """`torch.compiler.disable`: a function of torch's own is left as it is, a user's is not."""
    if sys._getframe(1).f_globals.get("__name__") == "torch._compile":
        return arguments[0]
    execute(_DYNAMO)
    return sys.modules[_DYNAMO].disable(*arguments, **options)


class _Submodule(SimpleNamespace):
    """A submodule of torch's compiler, with stand-ins as its attributes."""

    def __getattr__(self, name: str) -> Any:
        execute(_DYNAMO)
        return getattr(sys.modules[f"{_DYNAMO}.{self.submodule}"], name)


# The names of the compiler that torch's optimisers, process groups and PyG read.
_STAND_INS: dict[str, Any] = {
    "disable": _disable,
    "graph_break": lambda: None,
    "trace_rules": _Submodule(submodule="trace_rules", clear_lru_cache=lambda: None),
    "utils": _Submodule(submodule="utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
}
_LAZY = (
    *(META, _DYNAMO),
    *(f"torch_geometric.{name}" for name in ("datasets", "explain", "profile", "transforms")),
)
_lock, _started = RLock(), set[str]()


def install() -> None:
    """Set the variables that are not set, and make modules lazy in this process: executed when one
    of their names is read."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())


def execute(name: str) -> None:
    """Execute a lazy module for its side effects; do nothing if it is not lazy."""
    hasattr(sys.modules.get(name), "__all__")  # to read a name is to execute


class _LazyFinder(MetaPathFinder, Loader):
    """Defers executing; Python's `LazyLoader` leaves no names out, and knows threads since 3.12."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in _LAZY:
            return None
        from importlib.metadata import version  # help needs none of it

        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not version("torch").startswith("2.13."):  # with which it was tried
            return None
        spec.loader, spec.loader_state = self, spec.loader
        return spec

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = spec.loader_state
        module.__dict__.pop("__path__", None)  # to import a submodule executes this one, too
        module.__class__ = _LazyModule
        if spec.name == META:
            # `torch.Generator()` raises until its metaclass is set, which META's imports do.
            from torch._C import _set_generator_metaclass
            from torch._opaque_base import OpaqueBaseMeta

            _set_generator_metaclass(OpaqueBaseMeta)


class _LazyModule(ModuleType):
    """A module that is executed when a name is read that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        spec: Any = self.__spec__
        if spec.name == _DYNAMO and _DYNAMO not in _started and name in _STAND_INS:
            return _STAND_INS[name]
        with _lock:  # other threads wait until it is executed; this one reads on meanwhile
            if spec.name not in _started:
                _started.add(spec.name)
                if spec.name == _DYNAMO:
                    execute(META)
                if spec.submodule_search_locations is not None:
                    self.__path__ = spec.submodule_search_locations
                spec.loader.exec_module(self)
                super().__setattr__("__class__", ModuleType)
        return ModuleType.__getattribute__(self, name)
