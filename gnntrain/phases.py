"""Seconds by phase, on the host's clock or a GPU's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from gnntrain.devices import timing_event

T = TypeVar("T")
Moment = Any  # seconds of the host's clock, or an event as `torch.cuda.Event`; None: not timed

BACKGROUND = "background/"
_END: Any = object()


class Phases:
    """Adds up the seconds of each phase; from any thread.

    On a GPU a phase is timed by two events on the current stream, read after they have passed: the
    host never waits for the GPU. On Apple's GPUs, for which torch has no such events, a phase is
    the time to enqueue its work. Names of phases that run beside the training step, in the
    `background`, begin with `background/`.
    """

    def __init__(self, device: torch.device | None = None, *, background: bool = False) -> None:
        self._device = device or torch.device("cpu")
        self._has_events = timing_event(self._device) is not None
        self._prefix = BACKGROUND if background else ""
        self._seconds: dict[str, float] = {}
        self._pending: deque[tuple[str, Moment, Moment]] = deque()
        self._mark: Moment = None
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block as the phase `name`."""
        begin = self._now()
        try:
            yield
        finally:
            self._add(name, begin, self._now())

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items; the wait for each is timed as the phase `name`."""
        iterator = iter(items)
        while True:
            with self(name):
                item = next(iterator, _END)
            if item is _END:
                return
            yield item
            del item  # free it before the wait for the next

    @contextmanager
    def split(self, before: str, after: str) -> Iterator[None]:
        """Time the block as `before` until the last `mark`, from there as `after`."""
        begin, self._mark = self._now(), None
        yield
        end, mark = self._now(), self._mark
        self._add(before, begin, end if mark is None else mark)
        if mark is not None:
            self._add(after, mark, end)

    def mark(self, *_: object) -> None:
        """Set the border of `split` to now; a later mark moves it."""
        if self._has_events and self._mark is not None:
            self._mark.record()  # a new event for each gradient would cost more
        else:
            self._mark = self._now()

    def drain(self) -> dict[str, float]:
        """The seconds by phase since the last call, without events that have not passed yet."""
        with self._lock:
            self._read_events()
            seconds, self._seconds = self._seconds, {}
        return {self._prefix + name: value for name, value in seconds.items()}

    def _now(self) -> Moment:
        if not self._has_events:
            return time.perf_counter()
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a captured phase takes no time; replays have a phase of their own
        event = timing_event(self._device)
        event.record()
        return event

    def _add(self, name: str, begin: Moment, end: Moment) -> None:
        if begin is not None and end is not None:
            with self._lock:
                self._pending.append((name, begin, end))
                self._read_events()  # so that the list stays short

    def _read_events(self) -> None:
        while self._pending and (not self._has_events or self._pending[0][2].query()):
            name, begin, end = self._pending.popleft()
            seconds = begin.elapsed_time(end) / 1000 if self._has_events else end - begin
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def combined(step: Mapping[str, float], loader: Mapping[str, float]) -> dict[str, float]:
    """A training step's phases and its loader's, whose time in the step's own thread is part of
    `wait` and is subtracted there."""
    inline = sum(seconds for name, seconds in loader.items() if not name.startswith(BACKGROUND))
    wait = max(0.0, step.get("wait", 0.0) - inline)
    return {**loader, **step, "wait": wait} if step or loader else {}
