"""Trying cases in processes of their own: what kernels do to these does not reach the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch

from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.cases import Case, WrongResultError, all_cases

CASE_SECONDS = 30
"""A case that takes longer hangs; compiling its kernels takes a few seconds."""
# The modules of this process, not those of the current directory.
_CODE = (
    "import signal, sys; signal.alarm(60); "
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

    A process that ends within a case has found a fault, and another one goes on behind it, but for
    further cases of kernels that have a fault. A hang counts for good only if the case was in
    `known` before. A case that is not done by the deadline, of `time.monotonic`, gets no outcome.

    Returns:
        Why a process did not start (a GPU may take one alone); None: all did.
    """
    before, faulty, failure, is_over = set(known), set[str](), None, False
    while cases and not is_over:
        shares = [cases[number::num_processes] for number in range(min(num_processes, len(cases)))]
        rest: list[Case] = []
        with ExitStack() as stack:
            children = []
            for share in shares:
                printed = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                names = [case.name for case in share]
                process = subprocess.Popen(
                    [sys.executable, "-c", _CODE, device, *names, "--", *sys.path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=printed,
                    start_new_session=True,  # Ctrl-C in a terminal does not reach it
                )
                stack.callback(process.kill)
                children.append((share, process, printed))
            try:
                for _, process, _ in children:
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                is_over = True
            for share, process, printed in children:
                process.kill()
                lines = [json.loads(line) for line in process.communicate()[0].splitlines()]
                outcomes = [Outcome(*line) for line in lines if isinstance(line, list)]
                code = process.returncode
                ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                printed.seek(0)
                last = printed.read().strip().splitlines()[-1:]
                ending = ": ".join([f"ends its process: {ending}", *last])[:300]
                if not lines:
                    failure = failure if is_over else ending
                    continue
                if len(outcomes) * 2 < len(lines) and not is_over:  # it began one more
                    is_lasting = code != -signal.SIGKILL  # by the system or a person
                    if code == -signal.SIGALRM:
                        ending = "hangs: no result in time"
                        is_lasting = share[len(outcomes)].name in before
                    outcomes.append(Outcome(ending, is_lasting=is_lasting))
                known |= {case.name: one for case, one in zip(share, outcomes, strict=False)}
                faulty |= {c.kernel for c, one in zip(share, outcomes, strict=False) if one.fault}
                rest += share[len(outcomes) :]
        cases = [case for case in rest if case.kernel not in faulty]
    return failure


def child(device_name: str, *names: str) -> None:
    """Try the cases of these names, up to a fault: after an illegal access, for example, a process
    can compute nothing. A line of JSON says what begins, the next one how it ended.

    The process is ended by a signal if a case hangs, and by a broken pipe if its parent has ended.
    """
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # where a compiler may print
    cases = {case.name: case for case in all_cases()}
    device = torch.device(device_name)
    torch.ones(1, device=device)
    for name in names:
        signal.alarm(CASE_SECONDS)
        lines.write(f"{json.dumps(name)}\n")
        outcome = tried(cases[name], device)
        lines.write(f"{json.dumps(outcome)}\n")
        if outcome.fault is not None:
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
