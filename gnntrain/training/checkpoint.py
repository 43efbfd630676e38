"""Checkpoints: written whole or not at all, read without running code."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from gnntrain.errors import RunError, UserError

FORMAT_VERSION = 1

State = dict[str, Any]

# An epoch of a small graph takes milliseconds, flushing a file to disk too.
_SECONDS_BETWEEN_WRITES = 5.0


def save_checkpoint(path: Path, state: State) -> None:
    """Write `state` (tensors and plain data) to `path`, atomically.

    A reader sees the old file or the new one, never a part of it.

    Raises:
        RunError: The file cannot be written; the previous one is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save({"format_version": FORMAT_VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"The checkpoint {path} could not be written: {error}.") from error


def load_checkpoint(path: Path) -> State:
    """Read a checkpoint onto the CPU.

    Raises:
        UserError: There is none, it is damaged, or it is of another format version.
    """
    try:
        # weights_only: tensors and plain containers; a pickle that would run code is refused.
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except Exception as error:  # torch raises whatever its reader stumbles over
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The checkpoint {path} cannot be read: {reason}") from error
    version = state.get("format_version") if isinstance(state, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"The checkpoint {path} has format version {version}; "
            f"this gnntrain reads version {FORMAT_VERSION}."
        )
    return state


class CheckpointWriter:
    """Keeps `last.pt` and `best.pt` of a run.

    The first state offered is written at once; of those that follow in quick succession the newest
    is written every few seconds, and `flush` writes what is held.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, State] = {}
        self._written = -math.inf

    def offer(self, state: State, *, best: bool) -> None:
        """Take `state`, which nobody may change any more, as the last, and as the best if so."""
        self._held["last.pt"] = state
        if best:
            self._held["best.pt"] = state
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.flush()

    def flush(self) -> None:
        """Write what has been offered and not written yet."""
        for name in list(self._held):
            save_checkpoint(self._directory / name, self._held[name])
            del self._held[name]
        self._written = time.monotonic()
