"""An output that never ends a run: a failed write mutes it."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, TextIO

_ASCII: dict[int, int | str] = str.maketrans("▁▂▃▄▅▆▇█·…━", "_.-~=+*#|~-") | {
    ord("→"): "->",
    ord("±"): "+-",
}


class TolerantStream:
    """A text stream that replaces characters outside its encoding and survives a lost output.

    A closed pipe (``gnntrain | head``), a terminal that hung up or a full disk behind ``>`` mutes
    it; the run goes on, and its directory holds all results.

    Args:
        stream: The output; ``None`` is Python's value for an output that was closed at its start.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = Path(os.devnull).open("w") if stream is None else stream  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write ``text``, with ASCII in place of characters that the encoding lacks."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._tolerant("write", text.encode(encoding, errors="gnntrain.ascii").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._tolerant("flush")

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        with contextlib.suppress(ValueError):  # it was closed
            return self._stream.isatty()
        return False

    def _tolerant(self, method: str, *arguments: str) -> None:
        """Call a method of the stream, which is muted where it is lost."""
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # ValueError: this process closed the stream
            lost, self._stream = self._stream, Path(os.devnull).open("w")  # noqa: SIM115
            # The interpreter flushes the buffer at exit, which would fail again.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(self._stream.fileno(), lost.fileno())


def restore_terminal() -> None:
    """Show the cursor again, for a parent whose rank 0 was killed while its live view was on."""
    output = TolerantStream(sys.stdout)
    if output.isatty():
        output.write("\x1b[?25h")
        output.flush()


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", errors="backslashreplace").decode(), error.end


codecs.register_error("gnntrain.ascii", _to_ascii)
