"""Who computes the operators of a run: what `compute.kernels` asks for, after the self-check."""

from __future__ import annotations

import logging
import math
import os
from collections import ChainMap
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gnntrain.compute.selection import CPU_KERNELS, KernelChoice
from gnntrain.config import Config
from gnntrain.errors import UserError
from gnntrain.reporting.text import counted
from gnntrain.selfcheck.check import SECONDS, self_check
from gnntrain.selfcheck.gpus import kinds_of_gpus

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_log = logging.getLogger("gnntrain")

TRITON_DEVICES = {"cuda"}
"""Types of devices on which `compute.kernels=auto` means Triton's kernels."""

_TRITON = "triton"  # stands among the kernels' names for all of them
_MAX_FAULTS = 4
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def kernel_choice(
    config: Config, device_type: str, rendezvous: Rendezvous | None = None
) -> KernelChoice:
    """Decide who computes the operators, for all ranks of a run.

    The parent of a run calls this before its ranks start, and before it writes anything; of a run
    that a launcher has started, every process calls it, also those that follow process 0. Names the
    kernels that are replaced in a warning. Does not start CUDA in this process.

    Args:
        config: The configuration.
        device_type: Of the run's devices: cpu, cuda, mps, …
        rendezvous: Of the processes that a launcher has started; None: there is this one alone.

    Raises:
        UserError: `compute.kernels=triton`, but a kernel fails the self-check.
    """
    asked = config.compute.kernels
    if asked == "torch":
        return KernelChoice("torch")
    if not takes_triton(asked, device_type):
        return CPU_KERNELS if device_type == "cpu" else KernelChoice("torch")
    faults = _checked_together(config, device_type, rendezvous)
    if asked == "triton":
        _refuse(faults)
        return KernelChoice("triton")
    if faults and (rendezvous is None or rendezvous.is_main):
        _warn(faults)
    return KernelChoice("torch") if _TRITON in faults else KernelChoice("triton", faults)


def takes_triton(asked: str, device_type: str) -> bool:
    """Whether Triton's kernels are wanted here. A run that asks for them may be evaluated on a CPU,
    which takes its own, but for Triton's interpreter in tests."""
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    if asked == "triton" and device_type == "cpu":
        return interprets
    return device_type in TRITON_DEVICES


def _checked_together(
    config: Config, device_type: str, rendezvous: Rendezvous | None
) -> dict[str, str]:
    """The faults of kernels anywhere."""
    if rendezvous is None:
        return _checked(config, device_type)
    kind = sorted(gpu.name for gpu in kinds_of_gpus(device_type))
    kinds = rendezvous.gather("kinds of GPUs", kind)
    of_processes = list(zip(rendezvous.machines, kinds, strict=True))
    process = rendezvous.launched.process
    is_first = of_processes.index(of_processes[process]) == process
    own = _checked(config, device_type) if is_first else {}
    return dict(ChainMap(*rendezvous.gather("self-check", own)))


def _checked(config: Config, device_type: str) -> dict[str, str]:
    """The same for the GPUs of this machine, or those that this process sees."""
    if find_spec("triton") is None:
        return {_TRITON: "the package triton is not installed"}
    seconds = SECONDS if config.compute.kernels == "auto" else math.inf
    faults: dict[str, str] = {}
    for gpu in kinds_of_gpus(device_type):
        faults |= self_check(gpu, _precisions(config), seconds=seconds).faults
    return faults


def _precisions(config: Config) -> set[str]:
    """The precisions of activations and features. Evaluation computes in fp32."""
    return {"fp32", config.trainer.precision, _PRECISIONS[config.dataset.feature_dtype]}


def _refuse(faults: Mapping[str, str]) -> None:
    if faults:
        raise UserError(
            f"compute.kernels=triton, but {_in_words(faults)}.",
            "Write compute.kernels=auto: torch's operators then take the place of these kernels. "
            "`gnntrain doctor --gpu` tries them again.",
        )


def _warn(faults: Mapping[str, str]) -> None:
    _log.warning(
        "%s. Torch's operators take their place, and the run is right, but slower: see "
        "`gnntrain doctor --gpu`.",
        _in_words(faults),
    )


def _in_words(faults: Mapping[str, str]) -> str:
    """All kernels, the first ones with their faults."""
    kernels = sorted(faults)
    told = [f"{kernel} ({faults[kernel]})" for kernel in kernels[:_MAX_FAULTS]]
    named = ", ".join([*told, *kernels[_MAX_FAULTS:]])
    return f"{counted(len(kernels), 'kernel')} did not pass the self-check: {named}"
