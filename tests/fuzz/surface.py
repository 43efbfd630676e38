"""What reads foreign input, and the rule that it must keep: an answer or a sentence, in time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

from gnntrain.errors import GnntrainError

LIMIT_SECONDS = 20.0
"""More than any input takes that is not a hang, also on a busy machine."""


class HangError(BaseException):
    """An input that was not answered in time."""


@dataclass(frozen=True)
class Surface:
    """A way in for foreign input.

    Attributes:
        name: What is tried.
        inputs: What it is tried with; structured, so that inputs get past the first check.
        read: Reads one input; any exception but a `GnntrainError` is a finding.
        share: How many of about 100 inputs are of it; less where an input takes long.
    """

    name: str
    inputs: SearchStrategy[Any]
    read: Callable[[Any], object]
    share: int

    def check(self, value: Any) -> bool:
        """Read an input; whether it was taken, not refused with a sentence.

        Raises:
            HangError: It took too long.
            Exception: Whatever is no sentence.
        """
        with _time_limit(LIMIT_SECONDS):
            try:
                self.read(value)
            except GnntrainError as error:
                if not error.message.strip():
                    raise AssertionError("a refusal says why") from error
                return False
        return True


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `HangError` in the main thread; other threads cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_number: int, _frame: object) -> None:
        raise HangError(f"no answer in {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
