"""The process that tries kernels: what it does to the GPU, or to itself, does not reach the run.

It reads a line of JSON, the names of the cases, and writes one before each case (its name) and one
after it (its `Result`). It ends with its input, or where the GPU no longer computes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from gnntrain.selfcheck.case import Case, Outcome, Result, WrongResultError
from gnntrain.selfcheck.cases import all_cases


def main(device_type: str) -> None:
    """Try the cases that the parent names."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries that print must not disturb the lines
    names = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    device = torch.device(device_type)
    torch.ones(1, device=device)  # the GPU starts before the first case's time runs
    cases = {case.name: case for case in all_cases(device_type)}
    try_cases(
        [cases[name] for name in names], device, lambda line: print(json.dumps(line), file=out)
    )


def try_cases(cases: Iterable[Case], device: torch.device, write: Callable[[Any], None]) -> None:
    """Try one case after the other, and write each name and result."""
    write(None)
    for case in cases:
        write(case.name)
        result = _tried(case, device)
        write(asdict(result))
        if result.fault is not None and not _computes(device):
            return


def _tried(case: Case, device: torch.device) -> Result:
    try:
        outcome = case.run(device)
    except WrongResultError as wrong:
        return Result(case.name, case.kernel, f"wrong result: {wrong}")
    except torch.OutOfMemoryError as error:
        return Result(case.name, case.kernel, _line(error), is_lasting=False)
    except Exception as error:  # whatever it is, the kernel cannot be used
        return Result(case.name, case.kernel, _line(error))
    return Result(case.name, case.kernel, None, **outcome._asdict())


def _line(error: Exception) -> str:
    """The error's type and the first line of its text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _computes(device: torch.device) -> bool:
    """Whether the device still computes: after an illegal access a process can do nothing there."""
    try:
        return bool((torch.ones(2, device=device).sum() == 2).item())
    except Exception:
        return False


def _end_with_parent() -> None:
    """Wait until the parent has gone, also where a kernel never ends."""
    while os.read(0, 1):
        pass
    os._exit(1)
