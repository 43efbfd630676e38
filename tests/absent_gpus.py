"""GPUs that are not here: kernels are compiled for them, down to their machine code.

Triton is told that one of these GPUs is there. So it specialises a kernel on its arguments, by
alignment and size, as it does where the kernel is launched.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""NVIDIA's A100, H100, B200 and AMD's MI300."""

_BINARIES = {"cuda": "cubin", "hip": "hsaco"}
_AMD_KEYS = {
    "registers": "vgpr_count",
    "shared": "group_segment_fixed_size",
    "local": "private_segment_fixed_size",
}


class AbsentGPUs:
    """Triton's driver, with one of the `TARGETS` as the current device."""

    def __init__(self) -> None:
        self._current = next(iter(TARGETS))
        triton.runtime.driver.set_active(self)

    def compiled(self, kernel: Any, target: str, arguments: dict[str, Any]) -> Any:
        """The kernel that a launch with these arguments runs on a target.

        Raises:
            AssertionError: Other sizes would compile it anew, or there is no machine code.
        """
        self._current = target
        sizes = [name for name, value in arguments.items() if type(value) is int]
        sizes = [name for name in sizes if not name.isupper()]
        found = [
            kernel.warmup(grid=(1,), **{**arguments, **dict.fromkeys(sizes, size)})
            for size in (1, 16, 17)
        ]
        assert found[0] is found[1] is found[2], f"specialised on one of {sizes}"
        assert found[0].asm[_BINARIES[TARGETS[target].backend]]
        return found[0]

    def get_current_device(self) -> str:
        return self._current

    def get_current_stream(self, device: str) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self._current]


def resources(compiled: Any) -> dict[str, int]:
    """What a thread and a program take: registers, bytes of shared memory, bytes of local memory.

    Local memory holds what does not fit into registers.
    """
    if "hsaco" in compiled.asm:
        return {
            name: int(re.findall(rf"\.{key}:\s+(\d+)", compiled.asm["amdgcn"])[-1])
            for name, key in _AMD_KEYS.items()
        }
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        shown = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    local = max(numbers["STACK"], numbers["LOCAL"])
    return {"registers": numbers["REG"], "shared": compiled.metadata.shared, "local": local}
