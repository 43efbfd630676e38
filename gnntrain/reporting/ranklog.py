"""A log file a rank: records of the logger ``gnntrain`` and Python's warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

from gnntrain.errors import RunError

LOGGER = "gnntrain"
_WARNINGS = "py.warnings"  # the logger of logging.captureWarnings
_PLACE = re.compile(r"^.*?:\d+: (?=\w*Warning: )")


class RankLog(logging.FileHandler):
    """``logs/rank_N.log``, attached to the loggers until :meth:`close`.

    A full disk is a warning, once. Records are lost until there is room again.
    """

    _is_refused = False

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        line = f"%(asctime)s %(levelname)-7s rank {rank}: %(message)s"
        self.setFormatter(logging.Formatter(line))
        _attach(self)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Warn once, until a record could be written again."""
        if not self._is_refused:
            self._is_refused = True
            reason = getattr(sys.exc_info()[1], "strerror", None) or sys.exc_info()[1]
            words = "%s cannot be written (%s); its records are lost until it can"
            logging.getLogger(LOGGER).warning(words, self.baseFilename, reason)

    def flush(self) -> None:
        """Flush the file; a flush that works ends the trouble."""
        super().flush()
        self._is_refused = False

    def close(self) -> None:
        """Detach from the loggers and close the file."""
        _detach(self)
        with contextlib.suppress(OSError):  # it tries to write its buffer again
            super().close()


class _Messages(logging.Handler):
    """Warnings and errors as one-line messages."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        _attach(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the message, without the place and the source line that Python adds to a warning."""
        text = record.getMessage()
        if record.name == _WARNINGS:
            lines = [line for line in text.splitlines() if not line.startswith("  ")]
            text = _PLACE.sub("", "\n".join(lines))
        try:
            self._tell(" ".join(text.split()))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        _detach(self)
        super().close()


def open_rank_log(run_dir: Path, rank: int) -> logging.Handler:
    """Open ``logs/rank_N.log`` of a run for this process, until ``close()``.

    It gets the records of the logger ``gnntrain`` from level INFO on, and Python's warnings, which
    no longer go to standard error.

    Raises:
        RunError: the file cannot be written.
    """
    path = run_dir / "logs" / f"rank_{rank}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return RankLog(path, rank)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def forward_warnings(tell: Callable[[str], object] | None) -> logging.Handler:
    """Tell this process's warnings, a line each, until ``close()``; ``None``: standard error."""
    return _Messages(tell or (lambda text: print(text, file=sys.stderr)))


def _attach(handler: logging.Handler) -> None:
    logger = logging.getLogger(LOGGER)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name in (LOGGER, _WARNINGS):
        logging.getLogger(name).addHandler(handler)


def _detach(handler: logging.Handler) -> None:
    for name in (LOGGER, _WARNINGS):
        logging.getLogger(name).removeHandler(handler)
    if not any(isinstance(h, RankLog | _Messages) for h in logging.getLogger(_WARNINGS).handlers):
        logging.captureWarnings(False)
