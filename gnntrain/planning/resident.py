"""What memory this process has resident, by kind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_STATUS = Path("/proc/self/status")
_MAPPINGS = Path("/proc/self/smaps")
_INTERVAL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident bytes of a process.

    Attributes:
        own: Nobody else's.
        files: Mapped pages of files, libraries and graph stores among them.
        shared: Pages of shared memory.
    """

    own: int
    files: int
    shared: int


def resident() -> Resident:
    """What this process has resident now; where the system does not tell kinds, all is its own."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return Resident(int(psutil.Process().memory_info().rss), 0, 0)
    kinds = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    own, files, shared = (
        int(kinds[kind].split()[0]) * 1024 for kind in ("RssAnon", "RssFile", "RssShmem")
    )
    return Resident(own, files, shared)


def mapped_from(folder: Path) -> int:
    """Resident bytes of this process's mappings of files in `folder`."""
    try:
        lines = _MAPPINGS.read_text().splitlines()
    except OSError:
        return 0
    total, counts = 0, False
    for line in lines:
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):  # the head of a mapping: addresses, rights, …, its file
            counts = len(rest) == 5 and rest[4].startswith(f"{folder}/")
        elif counts and name == "Rss:":
            total += int(rest[0]) * 1024
    return total


class OwnPeak:
    """Watches the most memory of its own that this process has, from time to time, in a thread.

    The system keeps such a peak only for all kinds together. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gnntrain-memory", daemon=True)

    def __enter__(self) -> Self:
        self.begin()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self) -> None:
        """Forget what was; from here on."""
        self._peak = resident().own

    def so_far(self) -> int:
        """The most bytes since the beginning."""
        self._peak = max(self._peak, resident().own)
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            self.so_far()
