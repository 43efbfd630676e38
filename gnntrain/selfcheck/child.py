"""The process that tries kernels: what they do to it, or to its GPU, does not reach the run.

It reads the name of a case a line, and answers with a line of JSON: the `Result`, and whether it
can try further cases. It ends with its input, also while a kernel does not end.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import asdict

import torch

from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.case import Case, Result, WrongResultError
from gnntrain.selfcheck.cases import all_cases

_MAX_TEXT = 300
# No memory, no room on a disk, a compiler that fails: nothing that the kernel has done.
_OF_THE_MACHINE = (
    torch.OutOfMemoryError,
    MemoryError,
    OSError,
    subprocess.SubprocessError,
    PinningError,
)


def main(device_name: str) -> None:
    """Answer the parent's requests; first say that the GPU has started."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries that print must not disturb the answers
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    torch.set_num_threads(1)
    device = torch.device(device_name)
    cases = {case.name: case for case in all_cases(device.type)}
    torch.ones(1, device=device)
    answers.write(f"{json.dumps(None)}\n")
    while True:
        result = tried(cases[requests.get()], device)
        computes = result.fault is None or _computes(device)
        answers.write(f"{json.dumps([asdict(result), computes])}\n")


def tried(case: Case, device: torch.device) -> Result:
    """Try a case; the result has what it raises."""
    try:
        return Result.of(case, error=case.run(device))
    except WrongResultError as wrong:
        return Result.of(case, f"wrong result: {wrong}")
    except Exception as error:  # whatever it is, the kernel cannot be used
        text = str(error).strip().partition("\n")[0][:_MAX_TEXT]
        fault = f"{type(error).__name__}: {text}"
        return Result.of(case, fault, is_lasting=not isinstance(error, _OF_THE_MACHINE))


def _computes(device: torch.device) -> bool:
    """Whether the device still computes: after an illegal access a process can do nothing there."""
    try:
        return bool((torch.ones(2, device=device).sum() == 2).item())
    except Exception:
        return False


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line.strip())
    os._exit(1)
