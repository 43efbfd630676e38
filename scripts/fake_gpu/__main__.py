"""Runs a command on a GPU that is not there.

    python -m scripts.fake_gpu gnntrain dataset=cora model=sage trainer.device=cuda
    python -m scripts.fake_gpu --gpus 2 --delay 1000 python program.py

It needs torch's CUDA build (`pip install torch==2.14.1`), gcc and binutils, and no GPU, no driver.
torch's own code for CUDA runs: dispatcher, autograd, allocators, streams, events, pinned memory,
CUDA graphs. `cudart.c` stands in the place of CUDA's runtime library; torch's operators compute on
the CPU (`kernels.py`), Triton's kernels in Triton's interpreter (`interpreter.py`). So results are
real.
These are errors: an operator on tensors of two devices; a kernel's access outside of live memory;
the host's access to a GPU's memory (the process crashes, as it does with a GPU).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.fake_gpu.build import build

_HERE = Path(__file__).parent


def environment(gpus: int, memory: int, delay: int, *, interpret: bool) -> dict[str, str]:
    """The variables that give a command fake GPUs.

    Args:
        gpus: How many.
        memory: Bytes of each.
        delay: The longest pause before a stream's item, microseconds.
        interpret: Have Triton's kernels interpreted.
    """
    libraries = build(Path(tempfile.gettempdir()) / f"fake_gpu-{os.getuid()}")
    paths = [str(_HERE / "site"), str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "FAKE_GPU": "1",
        "FAKE_GPU_COUNT": str(gpus),
        "FAKE_GPU_MEMORY": str(memory),
        "FAKE_GPU_DELAY": str(delay),
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **({"TRITON_INTERPRET": "1"} if interpret else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.fake_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpus", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--memory", type=float, default=4, help="GiB of each (default 4)")
    parser.add_argument(
        "--delay", type=int, default=200, help="longest pause of a stream in µs (default 200)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("give a command")
    command = shutil.which(
        options.command[0], path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    )
    if command is None:
        parser.error(f"{options.command[0]} is no command")
    memory = int(options.memory * 2**30)
    variables = environment(options.gpus, memory, options.delay, interpret=True)
    os.execve(command, [command, *options.command[1:]], variables)


if __name__ == "__main__":
    main()
