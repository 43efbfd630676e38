"""The packages that gnntrain needs, and those that it can use."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from importlib import metadata

from packaging.requirements import Requirement

from gnntrain.reporting.environment import package_version
from gnntrain.reporting.text_report import Check

# Those that fail at their import where an installation is broken.
_IMPORTED = ("torch", "torch_geometric", "numba", "hydra")
_SHOWN = ("torch", "torch-geometric", "numba", "numpy", "hydra-core", "ogb")
_OPTIONAL = {
    "triton": "sampler.backend=triton; comes with torch's CUDA builds",
    "pyg-lib": "sampler.backend=pyg; from https://data.pyg.org/whl",
    "torch-sparse": "sampler.backend=pyg without pyg-lib",
    "wandb": "logger=wandb",
    "mlflow": "logger=mlflow",
    "optuna": "sweeps that search",
}


def required() -> list[Check]:
    """Python and the packages gnntrain is built on: their versions, and whether they load."""
    found = [
        Check("ok", "Python", platform.python_version()),
        Check("ok", "gnntrain", package_version("gnntrain") or "-"),
    ]
    faults = {fault.name: fault for fault in (*_unmet(), *_broken())}
    found += [
        Check("ok", name, package_version(name) or "-") for name in _SHOWN if name not in faults
    ]
    return [*found, *faults.values()]


def _unmet() -> list[Check]:
    """Requirements that are not there, or in another version."""
    found = []
    for text in _requirements():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = package_version(requirement.name)
        wanted = f"{requirement.name}{requirement.specifier}"
        hint = f"Type `pip install '{wanted}'`."
        if version is None:
            found.append(Check("problem", requirement.name, "not installed", hint))
        elif not requirement.specifier.contains(version, prereleases=True):
            text = f"{version}, where {requirement.specifier} is needed"
            found.append(Check("problem", requirement.name, text, hint))
    return found


def _requirements() -> list[str]:
    try:
        return metadata.requires("gnntrain") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []


def _broken() -> list[Check]:
    """Packages that are installed but cannot be loaded."""
    found = []
    for module in _IMPORTED:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation raises whatever it likes
            name = {"hydra": "hydra-core"}.get(module, module.replace("_", "-"))
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            hint = f"Type `pip install --force-reinstall {name}`."
            found.append(Check("problem", name, f"cannot be loaded: {reason}", hint))
    return found


def optional() -> list[Check]:
    """The packages that some choices need."""
    found = []
    for name, purpose in _OPTIONAL.items():
        version = package_version(name)
        text = f"not installed: {purpose}"
        found.append(Check("ok", name, version) if version else Check("note", name, text))
    return [*found, _compiler()]


def _compiler() -> Check:
    """The C compiler with which Triton makes its launchers, as Triton looks for it."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler:
        return Check("ok", "C compiler", compiler)
    text = "none: Triton needs one on a GPU, and trainer.compile a C++ compiler"
    return Check("note", "C compiler", text)
