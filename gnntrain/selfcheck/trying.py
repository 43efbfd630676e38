"""Trying cases in processes of their own: what kernels do to these does not reach the run."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.cases import Case, WrongResultError, all_cases

CASE_SECONDS = 30.0
"""A case that takes longer hangs; compiling its kernels takes a few seconds."""
_HANGS = "Timeout ("  # says `faulthandler` as it ends a process
# The modules of this process, not those of the current directory.
_CODE = (
    "import faulthandler, sys; faulthandler.dump_traceback_later(60, exit=True); "
    "end = sys.argv.index('--'); sys.path[:] = sys.argv[end + 1 :]; "
    "from gnntrain.selfcheck.trying import child; child(*sys.argv[1:end])"
)
# No memory, no room on a disk, a compiler that fails: nothing that the kernel has done.
_OF_THE_MACHINE = (
    *(MemoryError, torch.OutOfMemoryError, OSError),
    *(subprocess.SubprocessError, PinningError),
)


class Outcome(NamedTuple):
    """What came of a case: what is wrong, if anything; else the error, see `cases.compare`; and
    whether another try would end alike. It may not without memory, or after a hang, which may have
    been a machine with much else to do."""

    fault: str | None = None
    error: float = 0.0
    is_lasting: bool = True


def try_cases(
    cases: Sequence[Case],
    device: str,
    deadline: float,
    num_processes: int,
    known: dict[str, Outcome],
) -> str | None:
    """Try cases, each process an equal share, see `child`; `known` gets the outcomes by name.

    A process that ends or hangs within a case has found a fault, and others go on with the rest,
    but for further cases of kernels that have a fault. A hang counts for good only if the case was
    in `known` before. A case that is not done by the deadline, of `time.monotonic`, gets no
    outcome.

    Returns:
        Why a process did not start (a GPU may take one alone); None: all did.
    """
    before, faulty, failure, is_over = set(known), set[str](), None, False
    while cases and not is_over:
        shares = [cases[number::num_processes] for number in range(min(num_processes, len(cases)))]
        rest: list[Case] = []
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(tempfile.mkdtemp(dir=folder)) for _ in shares]
            processes = list(map(_start, shares, [device] * len(shares), places))
            try:
                for process in processes:
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                is_over = True
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            for share, place, process in zip(shares, places, processes, strict=True):
                ending = _ending(
                    process.returncode, (place / "printed").read_text(errors="replace")
                )
                if not (place / "outcomes").exists():
                    failure = failure if is_over else ending
                    continue
                lines = (place / "outcomes").read_text().splitlines()
                outcomes = [Outcome(*json.loads(line)) for line in lines]
                is_at_fault = any(outcome.fault for outcome in outcomes)
                if len(outcomes) < len(share) and not is_at_fault and not is_over:
                    is_lasting = process.returncode != -signal.SIGKILL  # by the system or a person
                    if ending.startswith("hangs"):
                        is_lasting = share[len(outcomes)].name in before
                    outcomes.append(Outcome(ending, is_lasting=is_lasting))
                known |= {case.name: one for case, one in zip(share, outcomes, strict=False)}
                faulty |= {c.kernel for c, one in zip(share, outcomes, strict=False) if one.fault}
                rest += share[len(outcomes) :]
        cases = [case for case in rest if case.kernel not in faulty]
    return failure


def _start(share: Sequence[Case], device: str, place: Path) -> subprocess.Popen[bytes]:
    """Start a process whose files lie in a folder."""
    arguments = [device, str(place / "outcomes"), str(os.getpid()), *(case.name for case in share)]
    with (place / "printed").open("wb") as printed:
        return subprocess.Popen(
            [sys.executable, "-c", _CODE, *arguments, "--", *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,  # Ctrl-C in a terminal does not reach it
        )


def _ending(code: int, printed: str) -> str:
    """How a process ended that should not have, with the last line that it printed."""
    if _HANGS in printed:
        return "hangs: no result in time"
    ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return ": ".join([f"ends its process: {ending}", *printed.strip().splitlines()[-1:]])[:300]


def child(device_name: str, path: str, parent: str, *names: str) -> None:
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
