"""Modules that a library imports at its top and a run rarely uses: executed when first used.

`import torch` and `import torch_geometric` import all of their parts, of which training uses few.
After `install`, which the command line calls, the modules of `LAZY_MODULES` are executed when one
of their names is read. A script that imports gnntrain as a library keeps Python's own imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, NamedTuple


class Lazy(NamedTuple):
    """The properties of a lazy module.

    Attributes:
        stand_ins: Names that can be read without executing it, each with its value until then.
        first: A module that is executed before it.
        is_open: Whether its submodules can be imported without it.
        instead: Called when the module is imported, in place of what others need of its execution.
    """

    stand_ins: Mapping[str, Any] = {}
    first: str | None = None
    is_open: bool = False
    instead: Callable[[], None] | None = None


def _disable(*arguments: Any, **options: Any) -> Any:
    """A function of torch's own is left as it is. A user's `torch.compiler.disable` must hold when
    a model that calls the function is compiled later."""
    if sys._getframe(1).f_globals.get("__name__") == "torch._compile":
        return arguments[0]
    execute(_DYNAMO)
    return sys.modules[_DYNAMO].disable(*arguments, **options)


def _do_nothing() -> None:
    """Stand-in for the compiler's functions: nothing is compiled yet."""


def _no() -> bool:
    """Stand-in for `is_exporting`: False before the exporter is executed."""
    return False


def _default_ddp_mode() -> str:
    """Stand-in for DDP's mode of the compiler: its default."""
    return "ddp_optimizer"


def _allow_generators() -> None:
    """`torch.Generator()` raises until its metaclass is set, which a module does that `META`
    imports."""
    from torch._C import _set_generator_metaclass
    from torch._opaque_base import OpaqueBaseMeta

    _set_generator_metaclass(OpaqueBaseMeta)


class _Submodule:
    """A submodule of a lazy module; it executes both when any other name is read from it.

    Args:
        package: The lazy module.
        name: The submodule.
        stand_ins: As for `Lazy`.
    """

    def __init__(self, package: str, name: str, stand_ins: Mapping[str, Any]) -> None:
        self._package, self._name, self._stand_ins = package, name, stand_ins

    def __getattr__(self, name: str) -> Any:
        if name in self._stand_ins:
            return self._stand_ins[name]
        execute(self._package)
        return getattr(getattr(sys.modules[self._package], self._name), name)


_DYNAMO = "torch._dynamo"
META = "torch._meta_registrations"
"""What operators do to tensors without data, where that is written in Python."""

LAZY_MODULES: Mapping[str, Lazy] = {
    "numpy.f2py": Lazy(),
    # Numba looks whether it is there; no kernel multiplies matrices.
    "scipy.linalg": Lazy(is_open=True),
    "torch_geometric.datasets": Lazy(),
    "torch_geometric.explain": Lazy(),
    "torch_geometric.profile": Lazy(),
    "torch_geometric.transforms": Lazy(),
    _DYNAMO: Lazy(
        {
            # torch's optimisers call these two in each step. Without the compiler they have no
            # effect.
            "disable": _disable,
            "graph_break": _do_nothing,
            # A process group clears the compiler's cache, and DDP asks for its mode.
            "trace_rules": _Submodule(_DYNAMO, "trace_rules", {"clear_lru_cache": _do_nothing}),
            "utils": _Submodule(_DYNAMO, "utils", {"get_optimize_ddp_mode": _default_ddp_mode}),
        },
        META,
    ),
    "torch.onnx": Lazy({"is_in_onnx_export": _no}),
}
"""The modules, whichever the versions of their packages."""

LAZY_TORCH_MODULES: Mapping[str, Lazy] = {
    # A third of `import torch`. Compiler, exporter and fake tensors import it through one of
    # the next two.
    META: Lazy(instead=_allow_generators),
    "torch._decomp": Lazy(first=META),
    "torch.export": Lazy(first=META),
    "torch.distributions": Lazy(),
    "torch.masked": Lazy(),
    "torch.nn.intrinsic": Lazy(),
    "torch.nn.qat": Lazy(),
    "torch.nn.quantizable": Lazy(),
    "torch.nn.quantized": Lazy(),
    "torch.quantization": Lazy(),
    "torchgen.model": Lazy(),
}
"""Further modules of the versions of torch of `TORCH_VERSIONS`.

torch's modules import each other in circles. Whether the circle still closes where one of them
waits has to be tried with each version.
"""

TORCH_VERSIONS = ("2.13",)

# Set before a module is executed; `inspect` reads them of every module there is.
METADATA = frozenset({"__name__", "__file__", "__spec__", "__loader__", "__package__", "__class__"})

_executing = RLock()


class LazyFinder(MetaPathFinder):
    """A module finder for lazy modules only."""

    def __init__(self, modules: Mapping[str, Lazy]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, with a lazy loader."""
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Make modules lazy in this process, except those imported already."""
    if not any(isinstance(finder, LazyFinder) for finder in sys.meta_path):
        modules = {**LAZY_MODULES, **(LAZY_TORCH_MODULES if _knows_torch() else {})}
        sys.meta_path.insert(0, LazyFinder(modules))


def execute(name: str) -> None:
    """Execute a lazy module for its side effects; do nothing if it is not lazy."""
    module = sys.modules.get(name)
    if isinstance(module, _LazyModule):
        module.__dict__  # noqa: B018  # to read is to execute


def _knows_torch() -> bool:
    """Whether the installed version of torch is a tested one."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return False
    return any(f"__version__ = '{version}." in text for version in TORCH_VERSIONS)


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
        if (instead := _rule(module.__spec__.name).instead) is not None:
            instead()


class _LazyModule(ModuleType):
    """A module that is executed when a name is read from it."""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in METADATA:
            return own(name)
        lazy = _rule(own("__name__"))
        if name in lazy.stand_ins:
            return lazy.stand_ins[name]
        if name == "__path__" and lazy.is_open:
            return own(name)
        with _executing:
            if own("__class__") is _LazyModule:
                if lazy.first is not None:
                    execute(lazy.first)
                become = super().__setattr__
                become("__class__", _ModuleInExecution)
                try:
                    own("__spec__").loader.exec_module(self)
                except BaseException:
                    become("__class__", _LazyModule)
                    raise
                become("__class__", ModuleType)
        return getattr(self, name)


def _rule(name: str) -> Lazy:
    return LAZY_MODULES.get(name) or LAZY_TORCH_MODULES[name]


class _ModuleInExecution(ModuleType):
    """A module in execution: its own thread may read it, other threads wait for the end."""

    def __getattribute__(self, name: str) -> Any:
        with _executing:
            return ModuleType.__getattribute__(self, name)
