"""Streams and events.

A stream counts its copies to the host. One stream sees the work of another one up to the count of
the event that it has waited for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.simulated_device.traffic import note_wait

_ids = itertools.count()
_lock = threading.RLock()
_local = threading.local()
_own = 0  # the device of a rank
_unfinished: list[tuple[int, int, Callable[[], None]]] = []  # by stream and count
_default: dict[int, Stream] = {}
_all: list[Stream] = []


class Stream:
    """As `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        del priority
        self.device = torch.device("sim", index_of(device))
        self.stream_id = next(_ids)
        self.count = 0
        self.seen: dict[int, int] = {}
        _all.append(self)

    def wait_event(self, event: Event) -> None:
        """What is enqueued from now on runs after the event."""
        for stream, count in event.seen.items():
            self.seen[stream] = max(count, self.seen.get(stream, 0))

    def wait_stream(self, stream: Stream) -> None:
        """What is enqueued from now on runs after all that the other one has now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """An event after all that is enqueued."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for all that is enqueued."""
        note_wait("Stream.synchronize")
        finish(self.record_event().seen)


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.has_timing = enable_timing
        self.seen: dict[int, int] = {}
        self.at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """After all that is enqueued on the stream."""
        stream = stream or current_stream()
        self.seen = stream.seen | {stream.stream_id: stream.count}
        self.at = time.perf_counter()

    def query(self) -> bool:
        """Whether all before it is done, which it is."""
        finish(self.seen)
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of the host's clock."""
        if not (self.has_timing and end.has_timing):
            raise RuntimeError("Both events must be made with enable_timing=True.")
        return 1000 * (end.at - self.at)


@dataclass
class Memory:
    """A piece of device memory: a tensor's and its views'.

    Attributes:
        recorded: Streams that `record_stream` named.
    """

    nbytes: int
    release: Callable[[int], None]
    recorded: set[int] = field(default_factory=set)

    def __del__(self) -> None:
        self.release(self.nbytes)


def index_of(device: Any) -> int:
    """The number of a device: of a number, a name or a `torch.device`."""
    if device is None:
        return current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    return current_device() if index is None else (index or _own)


def in_torch(index: int) -> int:
    """The number by which torch knows a device.

    torch's engine for gradients knows only the first device that is implemented in Python: in each
    process this is the one that is chosen there.
    """
    return 0 if index == _own else index or _own


def current_device() -> int:
    """The number of this thread's device."""
    return int(getattr(_local, "device", 0))


def set_device(device: Any) -> None:
    """Choose this thread's device."""
    global _own
    _local.device = index_of(device)
    _own = _own or _local.device


def default_stream(device: Any = None) -> Stream:
    """The stream of a device that each thread begins with."""
    index = index_of(device)
    with _lock:
        if index not in _default:
            _default[index] = Stream(index)
        return _default[index]


def current_stream(device: Any = None) -> Stream:
    """This thread's stream on a device."""
    index = index_of(device)
    found: Stream | None = getattr(_local, "streams", {}).get(index)
    return found or default_stream(index)


def set_stream(stream: Stream) -> None:
    """Choose this thread's stream on the stream's device."""
    _local.streams = getattr(_local, "streams", {}) | {stream.device.index: stream}


class stream:
    """A context with another current stream, as `torch.cuda.stream`."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._before = current_stream(self._stream.device)
            set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            set_stream(self._before)


def synchronize(device: Any = None) -> None:
    """The host waits for all streams of a device."""
    note_wait("synchronize")
    index = index_of(device)
    finish({s.stream_id: s.count for s in list(_all) if s.device.index == index})


def finish_all() -> None:
    """All that runs on any device ends."""
    finish({s.stream_id: s.count for s in list(_all)})


def when_finished(stream: Stream, end: Callable[[], None]) -> None:
    """Call `end` once the host knows that what the stream has now is done."""
    with _lock:
        stream.count += 1
        _unfinished.append((stream.stream_id, stream.count, end))


def finish(seen: dict[int, int]) -> None:
    """The host knows that the copies of the streams, up to these counts, are done."""
    with _lock:
        ended = [one for one in _unfinished if seen.get(one[0], 0) >= one[1]]
        _unfinished[:] = [one for one in _unfinished if one not in ended]
    for _, _, end in ended:
        end()
