"""What a run asks of the bus and of the host's patience: copies and waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import gnntrain

Direction = Literal["to device", "to host", "to peer"]

_ROOT = str(Path(gnntrain.__file__).parent) + "/"


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waited until the device had done all work of a stream.

    Attributes:
        reason: The operator, or why the copy was not asynchronous.
        stack: gnntrain's functions that were running, as `loading/loader.py:_batch`, the innermost
            first.
        thread: The thread's name.
    """

    reason: str
    stack: tuple[str, ...]
    thread: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between host and device, see `Wait`."""

    direction: Direction
    nbytes: int
    is_blocking: bool
    stack: tuple[str, ...]


@dataclass(slots=True)
class Traffic:
    """The copies and waits since it was made, in order."""

    copies: list[Copy] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def waits_in(self, function: str) -> set[str]:
        """The innermost functions that waited while `function` ran, such as `…/trainer.py:fit`."""
        return {wait.stack[0] for wait in self.waits if function in wait.stack}

    def copies_in(self, function: str, direction: Direction) -> list[Copy]:
        """The copies in a direction while `function` ran."""
        return [c for c in self.copies if function in c.stack and c.direction == direction]


_watching: list[Traffic] = []


@contextmanager
def watched() -> Iterator[Traffic]:
    """Record the copies and waits of all threads."""
    traffic = Traffic()
    _watching.append(traffic)
    try:
        yield traffic
    finally:
        _watching.remove(traffic)


def note_wait(reason: str) -> None:
    """The host waits."""
    if _watching:
        wait = Wait(reason, _stack(), threading.current_thread().name)
        for traffic in _watching:
            traffic.waits.append(wait)


def note_copy(direction: Direction, nbytes: int, *, is_blocking: bool) -> None:
    """Numbers cross the bus; if the copy blocks, the host waits."""
    if is_blocking:
        note_wait(f"a blocking copy {direction} of {nbytes} bytes")
    if _watching:
        copy = Copy(direction, nbytes, is_blocking, _stack())
        for traffic in _watching:
            traffic.copies.append(copy)


def _stack() -> tuple[str, ...]:
    frame, found = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ROOT):
            found.append(f"{code.co_filename.removeprefix(_ROOT)}:{code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
