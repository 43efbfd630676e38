"""Modules that a library imports at its top and a run rarely uses: executed when first used.

After `install`, which the command line calls, a module of `LAZY_MODULES` is executed when one of
its names is read. A script that imports gnntrain as a library keeps Python's own imports. Measured
one by one, each package's entries save a default run 0.2 s or more, all of them 1.3 s.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

_DYNAMO = "torch._dynamo"
META = "torch._meta_registrations"
"""What operators do to tensors without data, where that is written in Python: a third of
`import torch`. Compiler, exporter and fake tensors import it through the next two."""
_FROM_META = ("torch._decomp", "torch.export")

TORCH_VERSION = "2.13."
"""torch's modules import each other in circles. Whether the circle still closes where `META` waits
has to be tried with each version."""


def _disable(*arguments: Any, **options: Any) -> Any:
    """A function of torch's own is left as it is. A user's `torch.compiler.disable` must hold when
    a model that calls the function is compiled later."""
    if sys._getframe(1).f_globals.get("__name__") == "torch._compile":
        return arguments[0]
    execute(_DYNAMO)
    return sys.modules[_DYNAMO].disable(*arguments, **options)


class _Submodule:
    """A submodule of torch's compiler, with stand-ins as its attributes."""

    def __init__(self, name: str, **stand_ins: Any) -> None:
        self._name = name
        self.__dict__ |= stand_ins

    def __getattr__(self, name: str) -> Any:
        execute(_DYNAMO)
        return getattr(sys.modules[f"{_DYNAMO}.{self._name}"], name)


LAZY_MODULES: Mapping[str, Mapping[str, Any]] = {
    "numpy.f2py": {},
    "torch_geometric.datasets": {},
    "torch_geometric.explain": {},
    "torch_geometric.profile": {},
    "torch_geometric.transforms": {},
    _DYNAMO: {
        # torch's optimisers call these two in each step. Without the compiler they have no effect.
        "disable": _disable,
        "graph_break": lambda: None,
        # A process group clears the compiler's cache, and DDP asks for its mode.
        "trace_rules": _Submodule("trace_rules", clear_lru_cache=lambda: None),
        "utils": _Submodule("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    "torch.onnx": {"is_in_onnx_export": lambda: False},
    **{name: {} for name in (META, *_FROM_META)},
}
"""By module the names that can be read without executing it, each with its value until then."""

# Set before a module is executed; `inspect` and imports read them.
_METADATA = frozenset(
    {"__name__", "__file__", "__spec__", "__loader__", "__package__", "__class__"}
)

_lock, _started = RLock(), set[str]()


@functools.cache
def _knows_torch() -> bool:
    from importlib.metadata import version  # help needs none of it

    return version("torch").startswith(TORCH_VERSION)


def install() -> None:
    """Make modules lazy in this process, except those imported already."""
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())


def execute(name: str) -> None:
    """Execute a lazy module for its side effects; do nothing if it is not lazy."""
    module = sys.modules.get(name)
    if isinstance(module, _LazyModule):
        module.__dict__  # noqa: B018  # to read is to execute


class _LazyFinder(MetaPathFinder, Loader):
    """Finds the lazy modules and defers their execution by the loader in `spec.loader_state`.

    Python's `LazyLoader` cannot leave single names out, and before 3.12 knows no threads.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        needs_meta = fullname in (META, *_FROM_META)
        if fullname not in LAZY_MODULES or (needs_meta and not _knows_torch()):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader, spec.loader_state = self, spec.loader
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = spec.loader_state.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = module.__spec__.loader_state
        module.__class__ = _LazyModule
        if module.__spec__.name == META:
            # `torch.Generator()` raises until its metaclass is set, which META's imports do.
            from torch._C import _set_generator_metaclass
            from torch._opaque_base import OpaqueBaseMeta

            _set_generator_metaclass(OpaqueBaseMeta)


class _LazyModule(ModuleType):
    """A module that is executed when a name is read from it."""

    def __getattribute__(self, name: str) -> Any:
        own, module = super().__getattribute__, super().__getattribute__("__name__")
        if name in _METADATA:
            return own(name)
        if module not in _started and name in LAZY_MODULES[module]:
            return LAZY_MODULES[module][name]
        with _lock:  # other threads wait until it is executed; this one reads on meanwhile
            if module not in _started:
                _started.add(module)
                if module in (_DYNAMO, *_FROM_META):
                    execute(META)
                try:
                    own("__spec__").loader.exec_module(self)
                except BaseException:
                    _started.discard(module)
                    raise
                super().__setattr__("__class__", ModuleType)
        return own(name)
