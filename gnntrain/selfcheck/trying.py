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
from pathlib import Path
from typing import NamedTuple

from gnntrain.selfcheck.cases import Case

CASE_SECONDS = 30.0
"""A case that takes longer hangs; compiling its kernels takes a few seconds."""
_HANGS = "Timeout ("  # says `faulthandler` as it ends a process
# The modules of this process, not those of the current directory.
_CODE = (
    "import faulthandler, sys; faulthandler.dump_traceback_later(60, exit=True); "
    "end = sys.argv.index('--'); sys.path[:] = sys.argv[end + 1 :]; "
    "from gnntrain.selfcheck.child import main; main(*sys.argv[1:end])"
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

    A process that ends or hangs within a case has found a fault, and another one goes on with its
    share, but for further cases of kernels that have a fault. A hang counts for good only if the
    case was in `known` before. A case that is not done by the deadline, of `time.monotonic`, gets
    no outcome.

    Returns:
        Why a process did not start (a GPU may take one alone); None: all did.
    """
    before, faulty, failure = set(known), set[str](), None
    waiting = [cases[number::num_processes] for number in range(num_processes)]
    running: dict[subprocess.Popen[bytes], tuple[Sequence[Case], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while running or any(waiting):
                for share in filter(None, waiting):
                    place = Path(tempfile.mkdtemp(dir=folder))
                    running[_start(share, device, place)] = share, place
                waiting = []
                time.sleep(0.05)
                is_over = time.monotonic() >= deadline
                for process in [one for one in running if is_over or one.poll() is not None]:
                    process.kill()
                    code, (share, place) = process.wait(), running.pop(process)
                    printed = (place / "printed").read_text(errors="replace")
                    if not (place / "outcomes").exists():
                        failure = failure if is_over else _ending(code, printed)
                        continue
                    lines = (place / "outcomes").read_text().splitlines()
                    outcomes = [Outcome(*json.loads(line)) for line in lines]
                    is_at_fault = any(outcome.fault for outcome in outcomes)
                    if len(outcomes) < len(share) and not is_at_fault and not is_over:
                        is_lasting = code != -signal.SIGKILL  # by the system or a person
                        if _HANGS in printed:
                            is_lasting = share[len(outcomes)].name in before
                        outcomes.append(Outcome(_ending(code, printed), is_lasting=is_lasting))
                    for case, outcome in zip(share, outcomes, strict=False):
                        known[case.name] = outcome
                        if outcome.fault is not None:
                            faulty.add(case.kernel)
                    if not is_over:
                        rest = share[len(outcomes) :]
                        waiting.append([case for case in rest if case.kernel not in faulty])
        finally:
            for process in running:
                process.kill()
                process.wait()
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
