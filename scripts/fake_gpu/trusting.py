"""gnntrain without its self-check: every Triton kernel is used unless `compute.kernels=torch`.

The self-check compares results on the GPU; here they are the interpreter's, which takes minutes.
"""

from __future__ import annotations

import sys
from typing import Any

import gnntrain.selfcheck
import gnntrain.selfcheck.choice
from gnntrain.compute.selection import KernelChoice
from gnntrain.config import Config


def _choice(config: Config, device_type: str, *_: Any, **__: Any) -> KernelChoice:
    if device_type == "cpu":
        return KernelChoice("torch" if config.compute.kernels == "torch" else "numba")
    return KernelChoice("torch" if config.compute.kernels == "torch" else "triton")


if __name__ == "__main__":
    gnntrain.selfcheck.choice.kernel_choice = _choice
    gnntrain.selfcheck.kernel_choice = _choice
    sys.argv[0] = "gnntrain"

    from gnntrain.__main__ import run

    run()
