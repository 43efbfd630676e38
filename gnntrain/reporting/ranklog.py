"""A log file a rank: records of the logger ``gnntrain`` and Python's warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import explained

_OURS = logging.getLogger("gnntrain")
_WARNINGS = logging.getLogger("py.warnings")  # the logger of logging.captureWarnings
_PLACE = re.compile(r"^.*?:\d+: (?=\w*Warning: )")


class _Attached(logging.Handler):
    """A handler of the loggers ``gnntrain``, from level INFO on, and of Python's warnings, which no
    longer go to standard error; until `close`."""

    def attach(self) -> logging.Handler:
        if _OURS.getEffectiveLevel() > logging.INFO:
            _OURS.setLevel(logging.INFO)
        logging.captureWarnings(True)
        for logger in (_OURS, _WARNINGS):
            logger.addHandler(self)
        return self

    def close(self) -> None:
        for logger in (_OURS, _WARNINGS):
            logger.removeHandler(self)
        if not any(isinstance(one, _Attached) for one in _WARNINGS.handlers):
            logging.captureWarnings(False)
        with contextlib.suppress(OSError):  # a file that was full tries to write its buffer again
            super().close()


class _RankLog(_Attached, logging.FileHandler):
    """A full disk is a warning, once. Records are lost until there is room again."""

    _is_refused = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        if not self._is_refused:
            self._is_refused = True
            reason = getattr(sys.exc_info()[1], "strerror", None) or sys.exc_info()[1]
            words = "%s cannot be written (%s); its records are lost until it can"
            _OURS.warning(words, self.baseFilename, reason)

    def flush(self) -> None:
        super().flush()
        self._is_refused = False


class _Messages(_Attached):
    """Warnings and errors as one-line messages; they never end what they tell of."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == _WARNINGS.name:  # Python adds the place and the source line to a warning
            lines = [line for line in text.splitlines() if not line.startswith("  ")]
            text = _PLACE.sub("", "\n".join(lines))
        try:
            self._tell(" ".join(text.split()))
        except Exception:
            self.handleError(record)


def open_rank_log(run_dir: Path, rank: int) -> logging.Handler:
    """Open ``logs/rank_N.log`` of a run for this process, until ``close()``.

    It gets the records of the logger ``gnntrain`` from level INFO on, and Python's warnings.

    Raises:
        RunError: the file cannot be written.
    """
    path = run_dir / "logs" / f"rank_{rank}.log"
    with explained(path, RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = _RankLog(path, encoding="utf-8", errors="backslashreplace")
    log.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s rank {rank}: %(message)s"))
    return log.attach()


def forward_warnings(tell: Callable[[str], object] | None) -> logging.Handler:
    """Tell this process's warnings, a line each, until ``close()``; ``None``: standard error."""
    return _Messages(tell or (lambda text: print(text, file=sys.stderr))).attach()
