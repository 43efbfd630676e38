"""The self-check of the kernels for GPUs, tried anew and shown: `gnntrain doctor --gpu`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.reporting.tables import Judgement
from gnntrain.selfcheck.choice import (
    cache_file,
    faults_of,
    kinds_of_gpus,
    self_check,
    takes_triton,
)

PRECISIONS = ("fp32", "bf16", "fp16")
HEADER = ("kernel", "used", *PRECISIONS)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What came of a kernel's cases."""

    kernel: str
    # By precision, the largest error against float64, relative to the largest number; None: it
    # failed, or was not tried.
    errors: dict[str, float | None]
    judgement: Judgement
    why_not: str  # why a run does not use it; empty: it does

    def cells(self) -> list[str]:
        """The row of a table with `HEADER`."""
        errors = [_number(self.errors[precision]) for precision in PRECISIONS]
        return [self.kernel, "no" if self.why_not else "yes", *errors]


def check_kernels(config: Config) -> Iterator[tuple[str, list[KernelRow]]]:
    """Try all kernels on each kind of GPU: its name, and its kernels.

    Raises:
        UserError: There is no GPU that takes Triton's kernels.
    """
    device = LaunchPlan.of(config).device
    if not takes_triton("triton", device):
        raise UserError(
            f"There are no kernels to check: runs go to the {device} here.",
            "The kernels are for GPUs of NVIDIA and AMD; `gnntrain doctor` says what torch sees.",
        )
    if find_spec("triton") is None:
        raise UserError(
            "The package triton is not installed: runs take torch's operators.",
            "It comes with torch's CUDA builds for Linux; else: pip install triton",
        )
    for gpu, name in kinds_of_gpus(device).items():
        with contextlib.suppress(OSError):
            cache_file(gpu).unlink()
        outcomes = self_check(gpu, name, PRECISIONS)
        faults = faults_of(outcomes)
        errors = {case: one.error for case, one in outcomes.items() if one.fault is None}
        yield (
            f"kernels on {gpu}",
            [
                KernelRow(
                    kernel,
                    {precision: errors.get((kernel, precision)) for precision in PRECISIONS},
                    "problem" if kernel in faults else "ok",
                    faults.get(kernel, ""),
                )
                for kernel in dict.fromkeys(kernel for kernel, _ in outcomes)
            ],
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
