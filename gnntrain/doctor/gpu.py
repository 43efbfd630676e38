"""The self-check of the kernels for GPUs, tried anew and shown: `gnntrain doctor --gpu`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.reporting.tables import Judgement
from gnntrain.selfcheck.case import Result
from gnntrain.selfcheck.check import Checked, self_check
from gnntrain.selfcheck.choice import takes_triton
from gnntrain.selfcheck.gpus import kinds_of_gpus

PRECISIONS = ("fp32", "bf16", "fp16")
HEADER = ("kernel", "used", *PRECISIONS)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What came of a kernel's cases.

    Attributes:
        kernel: Its name.
        errors: By precision, the largest error against float64, relative to the largest number;
            None: it failed, or was not tried.
        judgement: ok or problem.
        why_not: Why a run does not use it; empty: it does.
    """

    kernel: str
    errors: dict[str, float | None]
    judgement: Judgement
    why_not: str

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
        found = self_check(gpu, PRECISIONS, seconds=math.inf, is_fresh=True)
        title = f"kernels on {gpu.name}" + (f", driver {gpu.driver}" if gpu.driver else "")
        yield title, rows_of(found)


def rows_of(found: Checked) -> list[KernelRow]:
    """A row for each kernel, in the order in which they were tried."""
    by_kernel: dict[str, list[Result]] = {kernel: [] for kernel in found.unchecked}
    for result in found.results:
        by_kernel.setdefault(result.kernel, []).append(result)
    faults = found.faults
    return [
        KernelRow(
            kernel,
            {precision: _error(results, precision) for precision in PRECISIONS},
            "problem" if kernel in faults else "ok",
            faults.get(kernel, ""),
        )
        for kernel, results in by_kernel.items()
    ]


def _error(results: list[Result], precision: str) -> float | None:
    """The largest error; of cases without numbers 0."""
    own = [one for one in results if one.precision in (precision, None)]
    if not own or any(one.fault is not None for one in own):
        return None
    return max(one.error for one in own)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
