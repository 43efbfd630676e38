"""A log file a rank: records of the logger ``gnntrain`` and Python's warnings."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import explained

_log = logging.getLogger("gnntrain")


class _RankLog(logging.FileHandler):
    """A full disk is a warning, once. Records are lost until there is room again."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        if not self._has_failed:
            self._has_failed = True
            words = "%s cannot be written (%s); its records are lost until it can"
            _log.warning(words, self.baseFilename, sys.exc_info()[1])


class _Messages(logging.Handler):
    """Warnings and errors as one-line messages; they never end what they tell of."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tell(" ".join(record.getMessage().split()))
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def rank_log(run_dir: Path, rank: int) -> Iterator[None]:
    """Write this process's records of the logger ``gnntrain``, from level INFO on, and Python's
    warnings to ``logs/rank_N.log`` of a run.

    Raises:
        RunError: the file cannot be written.
    """
    path = run_dir / "logs" / f"rank_{rank}.log"
    with explained(path, RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = _RankLog(path, encoding="utf-8", errors="backslashreplace")
    log.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s rank {rank}: %(message)s"))
    with _attached(log):
        yield


@contextlib.contextmanager
def forwarded_warnings(tell: Callable[[str], object] | None) -> Iterator[None]:
    """Tell this process's warnings, a line each; ``None``: standard error."""
    with _attached(_Messages(tell or (lambda text: print(text, file=sys.stderr)))):
        yield


@contextlib.contextmanager
def _attached(handler: logging.Handler) -> Iterator[None]:
    """Python's warnings are records of ``gnntrain`` meanwhile, and not printed."""
    if _log.getEffectiveLevel() > logging.INFO:
        _log.setLevel(logging.INFO)
    _log.addHandler(handler)
    before = warnings.showwarning
    warnings.showwarning = lambda text, kind, file, line, *_: _log.warning(
        "%s: %s (%s:%d)", kind.__name__, text, file, line
    )
    try:
        yield
    finally:
        warnings.showwarning = before
        _log.removeHandler(handler)
        with contextlib.suppress(OSError):  # a file that was full tries to write its buffer again
            handler.close()
