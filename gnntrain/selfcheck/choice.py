"""Who computes the operators of a run: what `compute.kernels` asks for, after the self-check."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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

SECONDS = 240.0
"""How long a run waits for the check; what is not reached is tried at the next start."""
TRITON_DEVICES = {"cuda"}
"""Types of devices on which `compute.kernels=auto` means Triton's kernels."""
_TRITON = "triton"  # stands among the kernels' names for all of them
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_log = logging.getLogger("gnntrain")


class GPU(NamedTuple):
    """A kind of GPU: its maker's name, the driver's version if known, and torch's name of one."""

    name: str
    driver: str
    device: str


def kernel_choice(
    config: Config, device_type: str, rendezvous: Rendezvous | None = None
) -> KernelChoice:
    """Decide who computes the operators, for all ranks of a run; a warning names the kernels that
    are replaced.

    The parent of a run calls this before its ranks start, and before it writes anything; of a run
    that a launcher has started, every process does, with their `rendezvous`: the first one of each
    kind of GPU checks, and the others wait. CUDA does not start here.

    Raises:
        UserError: `compute.kernels=triton`, but a kernel fails the self-check.
    """
    asked = config.compute.kernels
    if not takes_triton(asked, device_type):
        is_ours = device_type == "cpu" and asked != "torch"
        return CPU_KERNELS if is_ours else KernelChoice("torch")
    faults, kinds = dict[str, str](), dict[str, GPU]()
    if find_spec("triton") is None:
        faults[_TRITON] = "the package triton is not installed"
    else:
        kinds = {cache_file(gpu).name: gpu for gpu in kinds_of_gpus(device_type)}
    if rendezvous is not None:
        before = rendezvous.gather("kinds of GPUs", [*kinds])[: rendezvous.launched.process]
        kinds = {kind: gpu for kind, gpu in kinds.items() if not any(kind in of for of in before)}
    # Evaluation computes in fp32.
    precisions = {"fp32", config.trainer.precision, _PRECISIONS[config.dataset.feature_dtype]}
    for gpu in kinds.values():
        seconds = SECONDS if asked == "auto" else math.inf
        faults |= faults_of(self_check(gpu, precisions, seconds=seconds))
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
    return asked != "torch" and device_type in TRITON_DEVICES


def kinds_of_gpus(device_type: str) -> list[GPU]:
    """The kinds of GPUs; where they differ, or no tool lists them, every GPU that torch counts, in
    an order of its own."""
    if device_type == "cpu":
        return [GPU("Triton's interpreter", "", "cpu")]
    gpus = visible_gpus()
    kinds, drivers = ({str(gpu[key]) for gpu in gpus} for key in ("name", "driver"))
    driver = drivers.pop() if len(drivers) == 1 else ""
    if len(kinds) == 1:
        return [GPU(kinds.pop(), driver, f"{device_type}:0")]
    devices = [f"{device_type}:{number}" for number in range(torch.cuda.device_count())]
    names = sorted(kinds) or [socket.gethostname()]  # unknown: another machine checks its own
    return [GPU(", ".join([device, *names]), driver, device) for device in devices]


def self_check(
    gpu: GPU, precisions: Collection[str], *, seconds: float = SECONDS, is_fresh: bool = False
) -> dict[Case, Outcome]:
    """Try the kernels of a GPU in some precisions, once; then their outcomes come from the cache,
    unless `is_fresh`. A case that is not tried within the time has that as its fault."""
    cases = [case for case in all_cases() if case.precision in (None, *precisions)]
    path, failure = cache_file(gpu), None

    def load() -> dict[str, Outcome]:
        """The outcomes by the names of their cases; none of a file that cannot be read."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            if not is_fresh:
                return {name: Outcome(*one) for name, one in json.loads(path.read_bytes()).items()}
        return {}

    if _pending(cases, known := load()):
        _log.warning("Trying the kernels on %s, once: this may take some minutes.", gpu.name)
        # Other runs wait for the outcomes, unless that takes too long, or none can be kept there.
        lock, deadline = FileLock(path.with_suffix(".lock")), time.monotonic() + seconds
        with contextlib.suppress(OSError, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=min(seconds, SECONDS))
        try:
            known = load()
            for _ in range(2):  # again what had no time or memory
                failure = try_cases(_pending(cases, known), gpu.device, deadline, known)
        finally:
            with contextlib.suppress(OSError), atomic_write(path) as file:
                file.write(json.dumps(known, indent=1).encode())
            lock.release()
    reason = f"the start of a process for it {failure}" if failure else "the next start goes on"
    left = dict.fromkeys(_pending(cases, known), Outcome(f"not checked yet: {reason}"))
    return left | {case: known[case.name] for case in cases if case.name in known}


def faults_of(outcomes: Mapping[Case, Outcome]) -> dict[str, str]:
    """The first fault of each kernel that has one, with the case."""
    faults: dict[str, str] = {}
    for case, outcome in outcomes.items():
        if outcome.fault is not None:
            faults.setdefault(case.kernel, f"{outcome.fault} [{case.name.partition(': ')[2]}]")
    return faults


def _pending(cases: Sequence[Case], known: Mapping[str, Outcome]) -> list[Case]:
    """The cases whose outcome may change, or is not known. Further cases of a kernel that certainly
    fails would change nothing."""
    lasting = {c: known[c.name] for c in cases if c.name in known and known[c.name].is_lasting}
    faulty = faults_of(lasting)
    return [case for case in cases if case not in lasting and case.kernel not in faulty]


def cache_file(gpu: GPU) -> Path:
    """Where the outcomes of a GPU's kernels are kept: by GPU, driver, torch, Triton, the files that
    make kernels and cases, and the C compiler, which one of several machines may lack."""
    sources = hashlib.sha256()
    for room in ("compute", "sampling", "selfcheck"):
        for source in sorted((Path(__file__).parents[1] / room).glob("*.py")):
            sources.update(source.name.encode() + source.read_bytes())
    versions = package_version("torch"), package_version("triton"), compiler()
    key = json.dumps([gpu.name, gpu.driver, *versions, sources.hexdigest()])
    try:
        folder = platformdirs.user_cache_path("gnntrain")
    except RuntimeError:  # the user has no home: nothing is kept
        folder = Path(os.devnull)
    return folder / "selfcheck" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
