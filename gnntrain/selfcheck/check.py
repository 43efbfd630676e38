"""The self-check of one GPU: what is known from the cache, and the rest tried."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gnntrain.limits import available_cores
from gnntrain.selfcheck.cache import cache_file, held, load, save
from gnntrain.selfcheck.case import Case, Result
from gnntrain.selfcheck.gpus import GPU
from gnntrain.selfcheck.trying import CannotTryError, try_cases

SECONDS = 60.0
"""How long a run waits for the check; what is not reached is tried at the next start."""

_MAX_PROCESSES = 6  # each takes half a GiB of the GPU

_log = logging.getLogger("gnntrain")


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a GPU's kernels.

    Attributes:
        results: Of the cases asked for.
        unchecked: By kernel without a fault, why not all its cases have a result.
    """

    results: Sequence[Result]
    unchecked: dict[str, str]

    @property
    def faults(self) -> dict[str, str]:
        """By kernel, what is wrong with it, or that it is not known to be right."""
        return self.unchecked | first_faults(self.results)


def first_faults(results: Sequence[Result]) -> dict[str, str]:
    """The first fault of each kernel that has one."""
    found = [result for result in results if result.fault is not None]
    return {result.kernel: f"{result.fault} [{result.options}]" for result in reversed(found)}


def self_check(
    gpu: GPU,
    precisions: Collection[str],
    *,
    seconds: float = SECONDS,
    is_fresh: bool = False,
) -> Checked:
    """Try the kernels of a GPU, once; then their results come from the cache.

    Args:
        gpu: The GPU.
        precisions: Whose cases are tried; those without numbers are always.
        seconds: How long it may take.
        is_fresh: Forget earlier results.
    """
    from gnntrain.selfcheck.cases import all_cases  # imports PyG

    cases = [
        case
        for case in all_cases(gpu.device.partition(":")[0])
        if case.precision in (None, *precisions)
    ]
    path, deadline = cache_file(gpu), time.monotonic() + seconds
    known = {} if is_fresh else load(path)
    reason = "not checked yet: the check goes on at the next start"
    if _pending(cases, known):
        _log.warning("Trying the kernels on %s, once: this may take a minute.", gpu.name)
        with held(path, min(seconds, SECONDS)):
            known |= {} if is_fresh else load(path)  # of the process that held it before
            try:
                _try(cases, gpu, deadline, known)
            except CannotTryError as error:
                reason = f"not checked: {error}"
            save(path, known.values())
    results = [known[case.name] for case in cases if case.name in known]
    faults = first_faults(results)
    missing = {case.kernel for case in _pending(cases, known)}
    return Checked(results, dict.fromkeys(sorted(missing - faults.keys()), reason))


def _pending(cases: Sequence[Case], known: dict[str, Result]) -> list[Case]:
    """The cases whose result may change, or is not known. Further cases of a kernel that certainly
    fails would change nothing."""
    lasting = {name: result for name, result in known.items() if result.is_lasting}
    faulty = first_faults([lasting[case.name] for case in cases if case.name in lasting])
    return [case for case in cases if case.name not in lasting and case.kernel not in faulty]


def _try(cases: Sequence[Case], gpu: GPU, deadline: float, known: dict[str, Result]) -> None:
    """Try the pending cases side by side, then alone those that had no time or memory among the
    others."""
    num_processes = max(1, min(_MAX_PROCESSES, available_cores() // 2))
    for number in (num_processes, 1):
        pending = _pending(cases, known)
        results: list[Result] = []
        left = deadline - time.monotonic()
        try:
            try_cases(pending, gpu.device, left, number, results, set(known))
        finally:
            known |= {result.case: result for result in results}
