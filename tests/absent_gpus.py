"""GPUs that are not here: kernels are compiled for them, down to their machine code.

Triton is told that one of these GPUs is there. So it specialises a kernel on its arguments, by
alignment and size, as it does where the kernel is launched.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""NVIDIA's A100, H100 and B200, and AMD's MI300."""

_OPTIONS = "enable_fp_fusion", "num_warps"
_SIZES = 1, 16, 17
"""On these numbers Triton specialises kernels: 1, and multiples of 16."""


class Compiled(NamedTuple):
    """What a kernel takes on a target.

    Attributes:
        kernel, target: Their names.
        registers: Of a thread.
        shared: Bytes of a program.
        local: Bytes of a thread, in the GPU's memory: what does not fit into registers.
    """

    kernel: str
    target: str
    registers: int
    shared: int
    local: int


class AbsentGPUs:
    """Triton's driver, with one of the `TARGETS` as the current device."""

    def __init__(self) -> None:
        self._current = next(iter(TARGETS))
        triton.runtime.driver.set_active(self)

    def compile_all(self, kernel: Any, arguments: dict[str, Any]) -> list[Compiled]:
        """What a launch with these arguments would run, on each target.

        Raises:
            AssertionError: A batch of another size would compile the kernel anew.
        """
        found = []
        for target in TARGETS:
            binaries = [self.compiled(kernel, arguments, target, size) for size in _SIZES]
            assert binaries.count(binaries[0]) == len(_SIZES), f"{kernel} is specialised on a size"
            found.append(Compiled(kernel.__name__, target, *_resources(binaries[0])))
        return found

    def compiled(self, kernel: Any, arguments: dict[str, Any], target: str, size: int = 17) -> Any:
        """The kernel for a target, where all sizes that change from batch to batch are `size`.

        Their names are not in capitals.
        """
        self._current = target
        sizes = {
            name: size
            for name, value in arguments.items()
            if type(value) is int and name.islower() and name not in _OPTIONS
        }
        return kernel.warmup(grid=(1,), **{**arguments, **sizes})

    # What Triton asks of a driver.
    def get_current_device(self) -> str:
        return self._current

    def get_current_stream(self, device: str) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self._current]


def _resources(binary: Any) -> tuple[int, int, int]:
    if "hsaco" in binary.asm:
        keys = "vgpr_count", "group_segment_fixed_size", "private_segment_fixed_size"
        registers, shared, local = (
            int(re.findall(rf"\.{key}:\s+(\d+)", binary.asm["amdgcn"])[-1]) for key in keys
        )
        return registers, shared, local
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", shown)}
    return used["REG"], binary.metadata.shared, max(used["STACK"], used["LOCAL"])
