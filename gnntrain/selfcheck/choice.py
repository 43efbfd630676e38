"""Who computes the operators of a run: what `compute.kernels` asks for, after the self-check."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import torch
from filelock import FileLock

from gnntrain.atomic_io import atomic_write
from gnntrain.compute.selection import CPU_KERNELS, KernelChoice
from gnntrain.config import Config
from gnntrain.errors import UserError
from gnntrain.reporting.environment import compiler, package_version, visible_gpus
from gnntrain.reporting.text import counted
from gnntrain.selfcheck.cases import Case, Outcome, all_cases, try_cases

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_TRITON = "triton"  # stands among the kernels' names for all of them
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_log = logging.getLogger("gnntrain")


def kernel_choice(
    config: Config, device_type: str, rendezvous: Rendezvous | None = None
) -> KernelChoice:
    """Decide who computes the operators, for all ranks of a run; a warning names the kernels that
    are replaced.

    The parent of a run calls this before its ranks start, and before it writes anything; of a run
    that a launcher has started, every process does, with their `rendezvous`; CUDA stays unused.

    Raises:
        UserError: `compute.kernels=triton`, but a kernel fails the self-check.
    """
    asked = config.compute.kernels
    if not takes_triton(asked, device_type):
        is_ours = device_type == "cpu" and asked != "torch"
        return CPU_KERNELS if is_ours else KernelChoice("torch")
    # Evaluation computes in fp32.
    precisions = {"fp32", config.trainer.precision, _PRECISIONS[config.dataset.feature_dtype]}
    faults: dict[str, str] = {}
    if find_spec("triton") is None:
        faults[_TRITON] = "the package triton is not installed"
    else:
        for gpu, device in kinds_of_gpus(device_type).items():
            faults |= faults_of(self_check(gpu, device, precisions))
    if rendezvous is not None:
        for elsewhere in rendezvous.gather("self-check", faults):
            faults = elsewhere | faults
    if not faults:
        return KernelChoice("triton")
    names = sorted(faults)
    told = ", ".join([f"{name} ({faults[name]})" for name in names[:4]] + names[4:])
    failed = f"{counted(len(names), 'kernel')} did not pass the self-check: {told}"
    if asked == "triton":
        raise UserError(
            f"compute.kernels=triton, but {failed}.",
            "Write compute.kernels=auto: torch's operators then take the place of these kernels. "
            "`gnntrain doctor --gpu` tries them again.",
        )
    if rendezvous is None or rendezvous.is_main:
        _log.warning(
            "%s. Torch's operators take their place, and the run is right, but slower: see "
            "`gnntrain doctor --gpu`.",
            failed,
        )
    return KernelChoice("torch") if _TRITON in faults else KernelChoice("triton", faults)


def takes_triton(asked: str, device_type: str) -> bool:
    """Whether Triton's kernels are wanted here. A run that asks for them may be evaluated on a CPU,
    which takes its own, but for Triton's interpreter in tests."""
    if asked == "triton" and device_type == "cpu":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return asked != "torch" and device_type == "cuda"


def kinds_of_gpus(device_type: str) -> dict[str, str]:
    """The kinds of GPUs, each with its driver's version, and torch's name of one; where they
    differ, or no tool lists them, every GPU that torch counts, in an order of its own."""
    if device_type == "cpu":
        return {"Triton's interpreter": "cpu"}
    names = sorted({f"{gpu['name']}, driver {gpu['driver']}" for gpu in visible_gpus()})
    if len(names) == 1:
        return {names[0]: "cuda:0"}
    names = names or [socket.gethostname()]  # unknown: another machine checks its own
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return {", ".join([device, *names]): device for device in devices}


def self_check(gpu: str, device: str, precisions: Collection[str]) -> dict[Case, Outcome]:
    """Try the kernels of a kind of GPU in some precisions, once; then their outcomes come from the
    cache."""
    cases = [case for case in all_cases() if case[1] in precisions]
    path = cache_file(gpu)

    def load() -> dict[Case, Outcome]:
        """The outcomes that are kept; none of a file that cannot be read."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            rows = json.loads(path.read_bytes())
            return {(kernel, precision): Outcome(*one) for kernel, precision, one in rows}
        return {}

    known = load()
    if not known.keys() >= {*cases}:
        _log.warning("Trying the kernels on %s, once: this may take some minutes.", gpu)
        with contextlib.ExitStack() as lock:
            # Other runs wait for the outcomes, unless that takes too long, or none can be kept.
            with contextlib.suppress(OSError, NotImplementedError):
                path.parent.mkdir(parents=True, exist_ok=True)
                lock.enter_context(FileLock(path.with_suffix(".lock"), timeout=600))
            known = load()
            known |= try_cases([case for case in cases if case not in known], device)
            with contextlib.suppress(OSError), atomic_write(path) as file:
                kept = [(*case, outcome) for case, outcome in known.items() if outcome.is_lasting]
                file.write(json.dumps(kept).encode())
    return {case: known[case] for case in cases}


def faults_of(outcomes: Mapping[Case, Outcome]) -> dict[str, str]:
    """A fault of each kernel that has one."""
    return {kernel: one.fault for (kernel, _), one in outcomes.items() if one.fault is not None}


def cache_file(gpu: str) -> Path:
    """Where the outcomes of a kind of GPU are kept: by its name, torch, Triton, the files that make
    kernels and cases, and the C compiler, which one of several machines may lack."""
    versions = package_version("torch"), package_version("triton"), compiler()
    digest = hashlib.sha256(repr((gpu, versions)).encode())
    for room in ("compute", "sampling", "selfcheck"):
        for source in sorted((Path(__file__).parents[1] / room).glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    folder = Path(os.devnull)
    with contextlib.suppress(RuntimeError):  # the user has no home: nothing is kept
        folder = platformdirs.user_cache_path("gnntrain")
    return folder / "selfcheck" / f"{digest.hexdigest()[:16]}.json"
