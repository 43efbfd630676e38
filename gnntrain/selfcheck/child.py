"""The process that tries kernels on a GPU."""

from __future__ import annotations

import faulthandler
import json
import os
from pathlib import Path
from subprocess import SubprocessError

import torch

from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.cases import Case, WrongResultError, all_cases
from gnntrain.selfcheck.trying import CASE_SECONDS, Outcome

# No memory, no room on a disk, a compiler that fails: nothing that the kernel has done.
_OF_THE_MACHINE = MemoryError, torch.OutOfMemoryError, OSError, SubprocessError, PinningError


def main(device_name: str, path: str, parent: str, *names: str) -> None:
    """Try the cases of these names, up to a fault: after an illegal access, for example, a process
    can compute nothing. Each outcome becomes a line of the file, which exists once the GPU works.

    The process ends itself if a case hangs, and between two cases if its parent has ended.
    """
    torch.set_num_threads(1)
    cases = {case.name: case for case in all_cases()}
    device = torch.device(device_name)
    torch.ones(1, device=device)
    with Path(path).open("w", buffering=1) as file:
        for name in names:
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            outcome = tried(cases[name], device)
            file.write(f"{json.dumps(outcome)}\n")
            if outcome.fault is not None or os.getppid() != int(parent):
                break
    os._exit(0)  # not by way of CUDA, which may be unable to clean up


def tried(case: Case, device: torch.device) -> Outcome:
    """Try a case; the fault is what it raises."""
    try:
        return Outcome(error=case.run(device))
    except WrongResultError as wrong:
        return Outcome(f"wrong result: {wrong}")
    except Exception as error:  # whatever it is, the kernel cannot be used
        text = str(error).strip().partition("\n")[0][:300]
        is_lasting = not isinstance(error, _OF_THE_MACHINE)
        return Outcome(f"{type(error).__name__}: {text}", is_lasting=is_lasting)
