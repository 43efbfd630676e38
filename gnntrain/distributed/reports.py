"""What a rank that fails leaves for its parent, before the others can fail for its sake."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gnntrain.errors import Diverged, GnntrainError, RunError, UserError

T = TypeVar("T", ctypes.c_char, ctypes.c_int64)

_KINDS: dict[str, type[GnntrainError]] = {kind.__name__: kind for kind in (UserError, Diverged)}
# gloo, NCCL and the store that ranks meet at each have their own class and words for it.
_TIME_OUT = re.compile(r"tim(e|ed)[ -]?out", re.IGNORECASE)

# Room for a message, a hint and twice as long a traceback; a character is 12 bytes at most in JSON.
_MOST_CHARACTERS = 2_000
_SLOT_BYTES = 1 << 17
_LENGTH_BYTES = 4


class CollectiveTimeout(RunError):
    """A rank waited for the others for too long: another one is the cause."""


class Reports:
    """A place for each rank's error, in memory: a full disk does not keep it from being told.

    Args:
        slots: Shared by all processes of the run; for each rank a length, and so much JSON.
    """

    def __init__(self, slots: ctypes.Array[ctypes.c_char]) -> None:
        self._slots = slots

    @classmethod
    def create(cls, world_size: int) -> Reports:
        """No errors yet."""
        return cls(shared_array(ctypes.c_char, _SLOT_BYTES * world_size, world_size))

    @contextmanager
    def reported(self, rank: int) -> Iterator[None]:
        """Leave a rank's error, its first one only; an interruption is none."""
        try:
            yield
        except Exception as error:
            if self._read(rank) is None:
                self._write(rank, _described(rank, error))
            raise

    def first(self) -> GnntrainError | None:
        """The error of the rank that failed first by itself, as it told it; None if none has."""
        ranks = range(len(self._slots) // _SLOT_BYTES)
        reports = [report for rank in ranks if (report := self._read(rank)) is not None]
        if not reports:
            return None
        first = min(reports, key=lambda report: int(report["time"]))
        kind = CollectiveTimeout if first["timed_out"] else _KINDS.get(first["kind"], RunError)
        cause = kind(first["message"], first["hint"])
        cause.add_note(first["traceback"])
        return cause

    def _slot(self, rank: int) -> memoryview:
        return memoryview(self._slots).cast("B")[rank * _SLOT_BYTES : (rank + 1) * _SLOT_BYTES]

    def _read(self, rank: int) -> dict[str, Any] | None:
        slot = self._slot(rank)
        length = int.from_bytes(slot[:_LENGTH_BYTES], "little")
        if length == 0:
            return None
        report: dict[str, Any] = json.loads(bytes(slot[_LENGTH_BYTES : _LENGTH_BYTES + length]))
        return report

    def _write(self, rank: int, report: dict[str, Any]) -> None:
        slot, text = self._slot(rank), json.dumps(report).encode()
        slot[_LENGTH_BYTES : _LENGTH_BYTES + len(text)] = text
        # Last, since another process may be looking.
        slot[:_LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")


def shared_array(kind: type[T], length: int, world_size: int) -> ctypes.Array[T]:
    """Zeros that all processes of a run see, if there are several."""
    if world_size == 1:
        return (kind * length)()
    # Without a name in the file system: it ends with the last process that maps it.
    return multiprocessing.get_context("spawn").RawArray(kind, length)


def _described(rank: int, error: Exception) -> dict[str, Any]:
    ours = error if isinstance(error, GnntrainError) else None
    message = ours.message if ours else f"Rank {rank} failed: {type(error).__name__}: {error}"
    hint = ours.hint if ours else None
    return {
        "time": time.time_ns(),
        "kind": next((name for name, kind in _KINDS.items() if isinstance(error, kind)), ""),
        "message": message[:_MOST_CHARACTERS],
        "hint": hint and hint[:_MOST_CHARACTERS],
        "timed_out": not ours and _TIME_OUT.search(str(error)) is not None,
        "traceback": traceback.format_exc()[-2 * _MOST_CHARACTERS :],  # its end tells most
    }
