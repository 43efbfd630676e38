"""Trying cases in processes of their own, several at once."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from gnntrain.selfcheck.case import Case, Result
from gnntrain.selfcheck.child_process import ChildProcess, DeadError, LateError

START_SECONDS = 60.0
CASE_SECONDS = 30.0
"""A case that takes longer hangs; compiling its kernels takes a few seconds."""


class CannotTryError(Exception):
    """The process that tries kernels does not start."""


def try_cases(
    cases: Iterable[Case],
    device: str,
    seconds: float,
    num_processes: int,
    results: list[Result],
    tried_before: Collection[str] = (),
) -> None:
    """Try cases; the further ones of a kernel that fails are left out.

    Args:
        cases: In the order in which they are begun.
        device: Such as "cuda:0".
        seconds: How long all of it may take. A case that is not done by then gets no result.
        num_processes: How many cases are tried at once.
        results: Appended to, so that the caller has them after an exception too.
        tried_before: Names of cases. That one hangs counts for good only if it is among them: the
            machine may have had too much to do.

    Raises:
        CannotTryError: Cases are left, since no process could start.
    """
    trials = _Trials(cases, device, time.monotonic() + seconds, results, tried_before)
    try:
        with ThreadPoolExecutor(num_processes) as pool:
            try:
                for future in [pool.submit(trials.work) for _ in range(num_processes)]:
                    future.result()
            finally:
                trials.end()
    finally:
        trials.close()
    trials.refuse_if_left()


class _Trials:
    """The cases that wait, and the processes that try others."""

    def __init__(
        self,
        cases: Iterable[Case],
        device: str,
        deadline: float,
        results: list[Result],
        tried_before: Collection[str],
    ) -> None:
        self._waiting = deque(cases)
        self._device = device
        self._deadline = deadline
        self._results = results
        self._tried_before = tried_before
        self._children: list[ChildProcess] = []
        self._failure: Exception | None = None

    def work(self) -> None:
        """Try one case after the other, in a new process where one can do no more."""
        child: ChildProcess | None = None
        while self._is_left() and (child := child or self._started()):
            if (case := self._next()) is None:
                return
            result, goes_on = self._tried(case, child)
            if result is not None:
                self._results.append(result)
            if not goes_on:
                child.kill()
                child = None

    def end(self) -> None:
        """Have all threads end, since their processes do."""
        self._deadline = -math.inf
        for child in self._children:
            child.kill()

    def refuse_if_left(self) -> None:
        """Raise the failure of a process to start, if cases are left for it."""
        if self._waiting and self._failure is not None:
            raise CannotTryError(f"a process to try kernels does not start: {self._failure}")

    def close(self) -> None:
        for child in self._children:
            child.close()

    def _is_left(self) -> bool:
        """Whether there are a case to try, and time."""
        faulty = self._faulty()
        waits = any(case.kernel not in faulty for case in tuple(self._waiting))
        return waits and time.monotonic() < self._deadline

    def _next(self) -> Case | None:
        """The next case; None: other threads have taken all."""
        while True:
            try:
                case = self._waiting.popleft()
            except IndexError:
                return None
            if case.kernel not in self._faulty():
                return case

    def _faulty(self) -> set[str]:
        return {result.kernel for result in self._results if result.fault is not None}

    def _started(self) -> ChildProcess | None:
        """A process that waits for cases; None: it does not start, or not by the deadline. Where a
        GPU takes one process alone, only the first one starts."""
        child = ChildProcess(self._device)
        self._children.append(child)
        try:
            child.answer(min(time.monotonic() + START_SECONDS, self._deadline))
        except (LateError, DeadError) as error:
            if time.monotonic() < self._deadline:
                self._failure = error
            return None
        return child

    def _tried(self, case: Case, child: ChildProcess) -> tuple[Result | None, bool]:
        """The result, or None if there is none by the deadline; and whether the process goes on."""
        limit = time.monotonic() + CASE_SECONDS
        try:
            result, computes = child.ask(case.name, min(limit, self._deadline))
            return Result(**result), computes
        except LateError:
            fault = f"hangs: no result after {CASE_SECONDS:g} s"
            is_lasting = case.name in self._tried_before
        except DeadError as death:
            fault, is_lasting = f"ends its process: {death}", not death.was_killed
        if time.monotonic() >= self._deadline:
            return None, False
        return Result.of(case, fault, is_lasting=is_lasting), False
