"""The self-check of the kernels for GPUs, tried anew and shown: `gnntrain doctor --gpu`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.reporting.tables import Judgement
from gnntrain.selfcheck.cases import Case, Outcome
from gnntrain.selfcheck.choice import faults_of, kinds_of_gpus, self_check, takes_triton

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
    for gpu in kinds_of_gpus(device):
        outcomes = self_check(gpu, PRECISIONS, seconds=math.inf, is_fresh=True)
        faults = faults_of(outcomes)
        title = f"kernels on {gpu.name}" + (f", driver {gpu.driver}" if gpu.driver else "")
        yield (
            title,
            [
                KernelRow(
                    kernel,
                    {precision: _error(outcomes, kernel, precision) for precision in PRECISIONS},
                    "problem" if kernel in faults else "ok",
                    faults.get(kernel, ""),
                )
                for kernel in dict.fromkeys(case.kernel for case in outcomes)
            ],
        )


def _error(outcomes: Mapping[Case, Outcome], kernel: str, precision: str) -> float | None:
    """The largest error; of cases without numbers 0."""
    own = [
        outcome
        for case, outcome in outcomes.items()
        if case.kernel == kernel and case.precision in (precision, None)
    ]
    if not own or any(outcome.fault is not None for outcome in own):
        return None
    return max(outcome.error for outcome in own)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
