"""Who computes the operators of a run: what `compute.kernels` asks for, after the self-check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnntrain.compute.selection import KernelChoice
from gnntrain.config import Config

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous


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
        UserError: `compute.kernels=triton`, but a kernel fails the self-check, or the device does
            not run Triton's kernels.
    """
    asked = config.compute.kernels
    if asked == "auto" and device_type == "cpu":
        return KernelChoice("numba")
    return KernelChoice("torch")
