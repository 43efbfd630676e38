"""Checkpoints: written whole or not at all, by a thread; verified; read without running code."""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnntrain.atomic_io import draft_of, fsync_folder, remove_stale_drafts
from gnntrain.errors import RunError, TransientError, UserError
from gnntrain.paths import is_file

_log = logging.getLogger("gnntrain")

FORMAT_VERSION = 2
_READABLE = (1, 2)  # the weights of version 1 can be evaluated, but not resumed from

LAST, PREVIOUS, BEST = "last.pt", "last.prev.pt", "best.pt"

# An epoch of a small graph takes milliseconds, flushing a file to disk too.
_SECONDS_BETWEEN_WRITES = 5.0

_DOS_FOLDER = 0x10  # the bit of a zip record's attributes

State = dict[str, Any]


class CheckpointError(UserError):
    """A checkpoint that cannot be used, with the reason."""

    def __init__(self, path: Path, reason: str, hint: str | None = None) -> None:
        super().__init__(f"The checkpoint {path} cannot be used: {reason}.", hint)
        self.reason = reason


def save_checkpoint(path: Path, state: State, *, previous: Path | None = None) -> None:
    """Write `state` (tensors and plain data) to `path`, atomically.

    A reader sees the old file or the new one, never a part of it.

    Args:
        previous: The old file is renamed to this path, once the new one is written and verified.

    Raises:
        TransientError: The file cannot be written; the old one is unchanged.
    """
    try:
        with draft_of(path) as draft:
            with draft.open("wb") as file:
                torch.save({"format_version": FORMAT_VERSION, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            verify_checkpoint(draft)
            if previous is not None and is_file(path):
                path.replace(previous)
            draft.replace(path)
        fsync_folder(path.parent)
    except (OSError, RuntimeError, CheckpointError) as error:
        # torch's writer tells a full disk as a RuntimeError.
        reason = error.reason if isinstance(error, CheckpointError) else _first_line(error)
        hint = "Free some space there; the checkpoint before it is as it was."
        for place in (path, previous):
            if place is not None and _is_in_the_way(place):
                hint = _move_away(place)
        message = f"The checkpoint {path} could not be written: {reason}."
        raise TransientError(message, hint) from error


def remove_stale_files(directory: Path) -> None:
    """Remove the drafts of killed writers."""
    for name in (LAST, BEST):
        remove_stale_drafts(directory / name)


def verify_checkpoint(path: Path) -> None:
    """Compare every record of the file with its checksum (CRC-32), without reading objects.

    Raises:
        CheckpointError: A record differs, or the file is cut off or no checkpoint at all.
    """
    if _is_in_the_way(path):  # a pipe or a device may never end
        reason = "it is a folder" if path.is_dir() else "it is no regular file"
        raise CheckpointError(path, reason, _move_away(path))
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            for record in archive.infolist():
                # torch's reader would skip it, and return uninitialised memory without an error.
                if record.external_attr & _DOS_FOLDER:
                    damaged = record.filename
    except FileNotFoundError:
        raise CheckpointError(path, "there is no such file") from None
    except OSError as error:
        raise CheckpointError(path, error.strerror or str(error)) from error
    except Exception as error:  # zipfile stumbles over damage in many ways
        raise CheckpointError(path, "it is cut off, damaged or no checkpoint") from error
    if damaged is not None:
        raise CheckpointError(path, f"it is damaged: the checksum of {damaged} differs")


def _is_in_the_way(path: Path) -> bool:
    """Whether something other than a file lies at `path`."""
    return os.path.exists(path) and not is_file(path)  # noqa: PTH110 - Path's own may fail


def _move_away(path: Path) -> str:
    return f"Move {path} away: a checkpoint belongs there."


def load_checkpoint(path: Path) -> State:
    """Verify a checkpoint's checksums and read it onto the CPU.

    Raises:
        CheckpointError: There is none, it is damaged, of another format version, or not ours.
    """
    verify_checkpoint(path)
    try:
        # weights_only: tensors and plain containers; a pickle that would run code is refused.
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            path,
            "it holds more than tensors and plain data, which could run code when it is read",
            "gnntrain writes no such file; do not open it with other programs unless you trust it.",
        ) from error
    except Exception as error:  # torch's reader raises many types of exceptions
        raise CheckpointError(path, "it is no checkpoint that torch can read") from error
    version = state.get("format_version") if isinstance(state, dict) else None
    if not isinstance(version, int):
        raise CheckpointError(path, "gnntrain did not write it")
    if version not in _READABLE:
        raise CheckpointError(
            path, f"it has format version {version}, this gnntrain reads {FORMAT_VERSION}"
        )
    return state


def load_last(directory: Path) -> tuple[State, Path, list[CheckpointError]]:
    """The newest intact checkpoint of a run.

    Returns:
        Its state, its path, and the error of a newer checkpoint that was skipped, if any.

    Raises:
        UserError: There is none; the message has the error of each damaged one.
    """
    problems: list[CheckpointError] = []
    for path in (directory / LAST, directory / PREVIOUS):
        if not os.path.lexists(path):
            continue
        try:
            return load_checkpoint(path), path, problems
        except CheckpointError as error:
            problems.append(error)
    if problems:
        hint = next((p.hint for p in problems if p.hint), "Train the run anew.")
        raise UserError("\n".join(p.message for p in problems), hint)
    raise UserError(
        f"There is no checkpoint in {directory} to go on from.",
        "It was removed; train the run anew in another directory.",
    )


def load_weights(model: nn.Module, state: State, path: Path | str) -> None:
    """Give `model` the weights of a checkpoint's state.

    Raises:
        CheckpointError: They are another model's: the first names and shapes that differ are told.
    """
    weights = state["model"] if isinstance(state["model"], dict) else {}
    wanted = model.state_dict()
    differing = [
        f"{name} is {_shape(weights.get(name))} there and {_shape(wanted.get(name))} in the model"
        for name in dict.fromkeys([*wanted, *weights])
        if _shape(weights.get(name)) != _shape(wanted.get(name))
    ]
    if differing:
        more = f", and {len(differing) - 3} more differ" if len(differing) > 3 else ""
        raise CheckpointError(
            Path(path),
            f"it is another model's: {'; '.join(differing[:3])}{more}",
            "An older gnntrain made this model otherwise (of gin, the width inside its layers: see "
            "CHANGELOG.md), or the run's config.yaml or checkpoint was exchanged: train it anew.",
        )
    model.load_state_dict(weights)


def _shape(weight: object) -> str:
    if not isinstance(weight, Tensor):
        return "absent"
    kind = "" if weight.dtype == torch.float32 else f" of {weight.dtype}"
    return f"{list(weight.shape)}{kind}"


def _first_line(error: BaseException) -> str:
    # After a disk error torch's writer fails once more when it is closed.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


class CheckpointWriter:
    """Keeps `last.pt`, `last.prev.pt` and `best.pt` of a run, in a thread of its own.

    The first state is written at once. Later, the newest state is written every few seconds, and
    `close` writes the pending one. After a disk error the thread warns once and tries again every
    few seconds; it also logs the first success.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, State] = {}
        self._written = -math.inf
        self._wakeup = threading.Condition()
        self._closing = False
        self._is_writing = False
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        remove_stale_files(directory)

    def offer(self, state: State, *, best: bool, at_once: bool = False) -> None:
        """Queue `state`, which must not change later, as the last checkpoint and perhaps the best.

        Args:
            at_once: Write it now, however short ago the one before was.
        """
        with self._wakeup:
            if at_once:
                self._written = -math.inf
            if best:
                self._held[BEST] = state
            self._held[LAST] = state
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_until_closed, name="gnntrain-checkpoints", daemon=True
                )
                self._thread.start()
            self._wakeup.notify()

    def close(self) -> None:
        """Write the pending states and end the thread."""
        with self._wakeup:
            self._closing = True
            self._is_writing = self._thread is not None
            self._wakeup.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def is_writing(self) -> bool:
        """Whether a state is being written: the process should not end now."""
        return self._is_writing

    def raise_failure(self) -> None:
        """Raises RunError if the newest states could not be written."""
        if self._failure is not None:
            raise self._failure

    def _write_until_closed(self) -> None:
        closing = False
        while not closing:
            with self._wakeup:
                while not self._closing:  # sleep until a state is due
                    left = self._written + _SECONDS_BETWEEN_WRITES - time.monotonic()
                    self._is_writing = bool(self._held) and left <= 0
                    if self._is_writing:
                        break
                    self._wakeup.wait(left if self._held else None)
                closing = self._closing
                states, self._held = self._held, {}
            # The best first: the last checkpoint refers to it. So if the best cannot be written,
            # the last waits; and neither is taken from what is offered while the other is written.
            for name in (BEST, LAST):
                if name in states:
                    if not self._write(self._directory / name, states[name]):
                        with self._wakeup:
                            self._held = states | self._held
                        break
                    del states[name]
            else:
                if self._failure is not None:
                    self._failure = None
                    _log.warning("The checkpoints in %s are written again.", self._directory)
            self._written = time.monotonic()
        self._is_writing = False

    def _write(self, path: Path, state: State) -> bool:
        previous = self._directory / PREVIOUS if path.name == LAST else None
        try:
            save_checkpoint(path, state, previous=previous)
        except Exception as error:  # or the thread would end, and with it all checkpoints
            if not isinstance(error, RunError):
                reason = f"{type(error).__name__}: {error}"
                error = RunError(f"The checkpoint {path} could not be written: {reason}.")
            if self._failure is None:
                _log.warning("%s Training goes on, and it is tried again.", error.message)
            self._failure = error
            return False
        return True
