"""An output that never ends a run: what it cannot write, it does without."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import TextIO


class TolerantStream:
    """A text stream that replaces what its encoding lacks and goes quiet when it is gone.

    A closed pipe (``gnntrain | head``), a terminal that hung up or a full disk behind ``>`` mutes
    it; the run goes on and its directory holds everything. Has what a file to print to needs.

    Args:
        stream: Where to; ``None`` is what Python has for an output that was closed at its start.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else io.StringIO()
        self._is_gone = stream is None

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def is_gone(self) -> bool:
        """Whether writing failed once; nothing is written after that."""
        return self._is_gone

    def write(self, text: str) -> int:
        """Writes ``text``; escapes the characters that the encoding does not have."""
        if not self._is_gone:
            encoded = text.encode(self.encoding, errors="backslashreplace")
            with self._muted_when_gone():
                self._stream.write(encoded.decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        if not self._is_gone:
            with self._muted_when_gone():
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether a person is watching."""
        return not self._is_gone and self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    @contextlib.contextmanager
    def _muted_when_gone(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # the latter: closed by this process
            self._mute()

    def _mute(self) -> None:
        self._is_gone = True
        # What is still buffered would fail again when the interpreter flushes it at its end.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
