"""A process that tries kernels, as its parent sees it; see `child`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

_MAX_TEXT = 300
# The modules of this process, not those of the current directory.
_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]; from gnntrain.selfcheck.child import main; "
    "main(sys.argv[1])"
)


class LateError(Exception):
    """A process has not answered in time."""


class DeadError(Exception):
    """A process has ended instead of answering.

    Args:
        text: How it ended.
        was_killed: Whether by the system or a person, rather than by itself.
    """

    def __init__(self, text: str, *, was_killed: bool = False) -> None:
        super().__init__(text)
        self.was_killed = was_killed


class ChildProcess:
    """Starts the process; Ctrl-C in a terminal does not reach it.

    Args:
        device: Where it is to try kernels, such as "cuda:0".
    """

    def __init__(self, device: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, device, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def ask(self, request: str, deadline: float) -> Any:
        """Send a line; the answer, plain data. See `answer`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._dead() from None
        return self.answer(deadline)

    def answer(self, deadline: float) -> Any:
        """What the process says next: None once it has started.

        Args:
            deadline: Of `time.monotonic`.

        Raises:
            LateError: It says nothing until then.
            DeadError: It has ended.
        """
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            seconds = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], seconds)[0]:
                raise LateError("it says nothing")
            read = os.read(self._process.stdout.fileno(), 2**16)
            if not read:
                raise self._dead()
            line += read
        return json.loads(line)

    def kill(self) -> None:
        """End the process, whatever it does; another thread may wait for its answer."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and free what it took here."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):  # a request that was never read
                stream.close()

    def _dead(self) -> DeadError:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1][:_MAX_TEXT]}" if lines else ""
        if code >= 0:
            return DeadError(f"exit code {code}{said}")
        number = signal.Signals(-code)
        return DeadError(f"{number.name}{said}", was_killed=number == signal.SIGKILL)
