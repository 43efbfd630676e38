"""The checks of `gnntrain doctor`, section by section."""

from __future__ import annotations

import importlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from packaging.requirements import Requirement

from gnntrain import __version__, limits
from gnntrain.config import Config
from gnntrain.config.problems import shown
from gnntrain.errors import GnntrainError, RunError
from gnntrain.limits import available_cores
from gnntrain.paths import free_bytes, nearest_folder
from gnntrain.reporting.environment import compiler, cpu_model, package_version, visible_gpus
from gnntrain.reporting.rundir import RUNS
from gnntrain.reporting.tables import Check
from gnntrain.reporting.text import counted, format_bytes, format_seconds, shown_path

if TYPE_CHECKING:
    import torch

    from gnntrain.distributed.context import DistributedContext

_SHOWN = ("torch", "torch-geometric", "numba", "numpy", "hydra-core", "ogb")
# A broken installation of these shows when they are imported.
_IMPORTED = {
    "torch": "torch",
    "torch_geometric": "torch-geometric",
    "numba": "numba",
    "hydra": "hydra-core",
}
_OPTIONAL = {
    "triton": "sampler.backend=triton; comes with torch's CUDA builds",
    "pyg-lib": "sampler.backend=pyg; from https://data.pyg.org/whl",
    "torch-sparse": "sampler.backend=pyg without pyg-lib",
    "wandb": "logger=wandb",
    "mlflow": "logger=mlflow",
    "optuna": "sweeps that search",
    "pymetis": "gnntrain partition --method metis",
}
_LITTLE_MEMORY = 2 * 2**30
_LITTLE_DISK = 5 * 2**30
_TIMEOUT = 60.0
_NUM_FLOATS = 1 << 20

Checks = tuple[str, list[Check]]
"""A section's title, and its checks."""


def check_machine(config: Config) -> Iterator[Checks]:
    """Look at all that a run by `config` depends on.

    Where a required package is missing or broken, nothing but packages can be looked at.
    """
    required = [*required_packages()]
    yield "packages", required
    yield "optional", [*optional_packages()]
    if any(check.judgement == "problem" for check in required):
        return
    yield "processor", [*processor()]
    yield "memory", [*memory()]
    yield "GPUs", [*gpus(config)]
    yield "disk", [*disk(config)]
    yield "ranks", [check_two_ranks()]
    yield "auto", [*chosen_by_auto(config)]


def required_packages() -> Iterator[Check]:
    """Python and the packages gnntrain requires: their versions, and whether they load."""
    yield Check("ok", "Python", platform.python_version())
    yield Check("ok", "gnntrain", __version__)
    faults: dict[str, Check] = {}
    try:
        requires = [*map(Requirement, metadata.requires("gnntrain") or [])]
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        requires = []
    for requirement in requires:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, version = requirement.name, package_version(requirement.name)
        hint = f"Type `pip install '{name}{requirement.specifier}'`."
        if version is None:
            faults[name] = Check("problem", name, "not installed", hint)
        elif not requirement.specifier.contains(version, prereleases=True):
            text = f"{version}, where {requirement.specifier} is needed"
            faults[name] = Check("problem", name, text, hint)
    for module, name in _IMPORTED.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation raises any exception
            text = " ".join(f"cannot be imported: {type(error).__name__}: {error}".split())
            hint = f"Type `pip install --force-reinstall {name}`."
            faults[name] = Check("problem", name, text, hint)
    for name in _SHOWN:
        if name not in faults:
            yield Check("ok", name, package_version(name) or "-")
    yield from faults.values()


def optional_packages() -> Iterator[Check]:
    """Packages that some options need, and the compiler."""
    for name, purpose in _OPTIONAL.items():
        version = package_version(name)
        absent = Check("note", name, f"not installed: {purpose}")
        yield absent if version is None else Check("ok", name, version)
    found = compiler()
    text = "not installed: Triton needs one on a GPU, and trainer.compile a C++ compiler"
    yield Check("ok", "C compiler", found) if found else Check("note", "C compiler", text)


def processor() -> Iterator[Check]:
    """The processor, its instructions, and the cores that may be used."""
    cores, all_cores = available_cores(), os.cpu_count() or 1
    yield Check("ok", "model", cpu_model())
    yield _instructions(limits.cpu_flags())
    yield Check("ok", "cores", f"{cores}{'' if cores == all_cores else f' of {all_cores}'}")
    quota = limits.container().cores
    if quota is not None and quota < all_cores:
        yield Check("note", "quota", f"a container allows {quota:g} cores' time")
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        text = f"OMP_NUM_THREADS={threads} is set; ranks set their own threads"
        yield Check("ok", "variables", text)


def _instructions(flags: set[str]) -> Check:
    if not flags:
        return Check("note", "vectors", "this system does not list the processor's flags")
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), None)
    bf16 = next((name for name in limits.BF16_FLAGS if name in flags), None)
    if widest is None:
        hint = "Training on this processor will be slow."
        return Check("note", "vectors", "neither AVX2 nor AVX-512", hint)
    if bf16 is None:
        text = "trainer.precision=bf16 saves memory, its products are computed in float32"
        return Check("ok", "vectors", f"{widest}, no bf16: {text}")
    return Check("ok", "vectors", f"{widest}, {bf16}: bf16 in hardware")


def memory() -> Iterator[Check]:
    """Memory of the machine, and of the container."""
    available, total = limits.available_memory(), psutil.virtual_memory().total
    text = f"{format_bytes(available)} available of {format_bytes(total)}"
    if available < _LITTLE_MEMORY:
        hint = "End other programs; `gnntrain plan` says what a run needs."
        yield Check("note", "RAM", text, hint)
    else:
        yield Check("ok", "RAM", text)
    if (limit := limits.total_memory()) < total:
        hint = "A run beyond it is killed; `gnntrain plan` says what a run needs."
        yield Check("note", "limit", f"a container allows {format_bytes(limit)}", hint)


def gpus(config: Config) -> Iterator[Check]:
    """The GPUs, each tried, with the driver and its libraries."""
    import torch

    from gnntrain.devices import gpus_here, software

    listed = visible_gpus()
    found = [torch.device(kind, i) for kind, number in gpus_here().items() for i in range(number)]
    yield from map(_gpu, found)
    names = ", ".join(gpu["name"] for gpu in listed)
    if found:
        driver = listed[0]["driver"] if listed else None
        versions = [f"driver {driver}"] * (driver is not None) + [software()]
        yield Check("ok", "versions", ", ".join(filter(None, versions)) or "not told by torch")
    elif not listed:
        yield Check("note", "no GPU", "neither torch nor a driver sees one: runs go to the CPU")
    elif config.trainer.gpus == 0 or config.trainer.device == "cpu":
        yield Check("ok", "unused", f"{names}: the configuration leaves them alone")
    elif not software():
        text = f"{names}: but torch {torch.__version__} is a build for the CPU"
        hint = "Install a build for your GPU: https://pytorch.org/get-started/locally"
        yield Check("problem", "unusable", text, hint)
    else:
        text = f"{names}: but torch for {software()} cannot use them"
        hint = f"The driver {listed[0]['driver']} may be too old, or CUDA_VISIBLE_DEVICES hides it."
        yield Check("problem", "unusable", text, hint)


def _gpu(device: torch.device) -> Check:
    """One GPU, after a small product on it."""
    import torch

    from gnntrain import devices

    title = f"GPU {device.index}"
    try:
        name, total = devices.describe(device)
        ones = torch.ones(64, 64, device=device)
        assert float((ones @ ones).sum()) == 64**3
        free = devices.free_memory(device)
    except Exception as error:  # drivers raise many; each means that the GPU cannot be used
        hint = "See `nvidia-smi` or `rocm-smi`; leave it out with CUDA_VISIBLE_DEVICES, or write "
        hint += "trainer.device=cpu."
        return Check("problem", title, f"does not compute: {' '.join(str(error).split())}", hint)
    return Check("ok", title, f"{name}, {format_bytes(free)} free of {format_bytes(total)}")


def check_two_ranks() -> Check:
    """Start two ranks, on GPUs where there are two, and have them add up 4 MiB."""
    import torch.distributed as dist

    from gnntrain.devices import gpus_here
    from gnntrain.distributed.launch import LaunchPlan, launch
    from gnntrain.distributed.processes import start_server

    device = next((kind for kind, number in gpus_here().items() if number > 1), "cpu")
    backend = dist.get_default_backend_for_device(device)
    name = f"two {'CPU' if device == 'cpu' else 'GPU'} ranks"
    began = time.perf_counter()
    if device == "cpu":
        start_server("gnntrain.distributed.launch")  # a rank of a run imports more
    try:
        launch("gnntrain.doctor.checks:add_up", None, LaunchPlan(2, device, 1, _TIMEOUT))
    except (GnntrainError, OSError, RuntimeError) as error:
        text = f"{backend} all-reduce failed: {' '.join(str(error).split())}"
        hint = "Several ranks cannot run here: look for a firewall on the loopback interface. One "
        return Check("problem", name, text, hint + "rank needs no connection.")
    seconds = format_seconds(time.perf_counter() - began)
    return Check("ok", name, f"{backend} all-reduce of 4 MiB is right; {seconds} in all")


def add_up(context: DistributedContext, _: object) -> None:
    """One rank's part: add and compare.

    Raises:
        RunError: The sum is wrong.
    """
    import torch

    ranks = context.world_size
    total = context.sum(torch.full((_NUM_FLOATS,), context.rank + 1.0, device=context.device))
    if not bool((total == ranks * (ranks + 1) / 2).all()):
        raise RunError(f"The sum over {ranks} ranks is {float(total[0])}.")


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


def disk(config: Config) -> Iterator[Check]:
    """The folders of stores, runs and compiled kernels."""
    from gnntrain.compute import kernels
    from gnntrain.data.stores import stores_folder

    run_dir = config.run.dir
    yield _folder("stores", stores_folder(config.dataset), "dataset.store_dir")
    yield _folder("runs", RUNS if run_dir is None else Path(run_dir).parent, "run.dir")
    cache = getattr(getattr(kernels.reduce_rows, "stats", None), "cache_path", None)
    if cache and may_write(Path(cache)):
        yield Check("ok", "kernels", f"compiled kernels are kept: {shown_path(cache)}")
    else:
        hint = "Set NUMBA_CACHE_DIR to a folder you may write to."
        text = "compiled kernels cannot be kept: every process compiles them again"
        yield Check("note", "kernels", text, hint)


def _folder(name: str, folder: Path, key: str) -> Check:
    hint = f"Choose another disk with {key}=DIR."
    if not may_write(folder):
        return Check("problem", name, f"{shown_path(folder)} cannot be written", hint)
    free = free_bytes(folder)
    text = f"{format_bytes(free)} free: {shown_path(folder)}"
    return Check("note", name, text, hint) if free < _LITTLE_DISK else Check("ok", name, text)


def chosen_by_auto(config: Config) -> Iterator[Check]:
    """What the configuration leaves to this machine: ranks, threads, sampler, evaluation."""
    from gnntrain.distributed.launch import LaunchPlan
    from gnntrain.loading.build import num_loader_threads

    plan, sampler = LaunchPlan.of(config), config.sampler
    device, asked = plan.device, config.compute.kernels
    has_triton = device == "cuda" and find_spec("triton") is not None and asked != "torch"
    threads = num_loader_threads(sampler, plan.threads, overlaps=plan.use_gpus)
    kernels = "none: torch's operators"
    if has_triton:
        kernels = "Triton's that pass the self-check: `gnntrain doctor --gpu` shows it"
    elif (device, asked) == ("cpu", "auto"):
        kernels = "Numba's"
    drawn = "full graph"
    if sampler.name != "full":
        by_auto = "triton, or numba where the edges have no room" if has_triton else "numba"
        backend = by_auto if sampler.backend == "auto" else sampler.backend
        drawn = f"neighbor {shown(sampler.fan_outs)} ({backend})"
    ranks = counted(plan.world_size, "GPU rank" if plan.use_gpus else "CPU rank")
    yield Check("ok", "ranks", ranks)
    yield Check("ok", "threads", f"{counted(plan.threads, 'compute thread')} a rank")
    yield Check("ok", "kernels", kernels)
    yield Check("ok", "sampler", drawn)
    yield Check("ok", "loader", f"{counted(threads, 'background thread')} a rank")
    if plan.use_gpus and sampler.name != "full":
        parts = "edges and features in GPU memory" if has_triton else "features in GPU memory"
        rest = "cached, pinned or in the store" if has_triton else "cached or in the store"
        text = f"{parts} where half of it has room, else {rest}: "
        yield Check("ok", "graph", text + "`gnntrain plan dataset=NAME` says where and why")
    if config.evaluation.name == "layerwise":
        given = config.evaluation.memory_limit
        limit = limits.total_memory() // 4 if given is None else given * 2**30
        text = f"exact; a layer's activations stay in memory up to {format_bytes(limit)}"
        yield Check("ok", "evaluation", text)
