"""An output that never ends a run: a failed write mutes it."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

_ASCII = str.maketrans(dict(zip("▁▂▃▄▅▆▇█·…", "_.-~=+*#|~", strict=True)) | {"→": "->", "±": "+-"})
_SHOW_CURSOR = "\x1b[?25h"


class TolerantStream:
    """A text stream that replaces characters outside its encoding and survives a lost output.

    A closed pipe (``gnntrain | head``), a terminal that hung up or a full disk behind ``>`` mutes
    it; the run goes on, and its directory holds all results.

    Args:
        stream: The output; ``None`` is Python's value for an output that was closed at its start.
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
        """Whether a write failed; nothing is written after that."""
        return self._is_gone

    def write(self, text: str) -> int:
        """Write ``text``, with ASCII in place of characters that the encoding lacks."""
        if not self._is_gone:
            encoded = text.encode(self.encoding, errors="gnntrain.ascii")
            with self._muted_when_gone():
                self._stream.write(encoded.decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        if not self._is_gone:
            with self._muted_when_gone():
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        return not self._is_gone and self._stream.isatty()

    def fileno(self) -> int:
        """The stream's file descriptor."""
        return self._stream.fileno()

    @contextlib.contextmanager
    def _muted_when_gone(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: this process closed the stream
            self._mute()

    def _mute(self) -> None:
        self._is_gone = True
        # The interpreter flushes the buffer at exit, which would fail again.
        with contextlib.suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)


def restore_terminal(stream: TextIO | None = None) -> None:
    """Show the cursor again, for a parent whose rank 0 was killed while its live view was on."""
    output = TolerantStream(stream if stream is not None else sys.stdout)
    if output.isatty():
        output.write(_SHOW_CURSOR)
        output.flush()


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", errors="backslashreplace").decode(), error.end


codecs.register_error("gnntrain.ascii", _to_ascii)
