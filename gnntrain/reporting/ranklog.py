"""A log file a rank: records of the logger ``gnntrain`` and Python's warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import explained

_OURS = logging.getLogger("gnntrain")
_WARNINGS = logging.getLogger("py.warnings")  # the logger of logging.captureWarnings
_PLACE = re.compile(r"^.*?:\d+: (?=\w*Warning: )")


class _RankLog(logging.FileHandler):
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


class _Messages(logging.Handler):
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


@contextlib.contextmanager
def rank_log(run_dir: Path, rank: int) -> Iterator[None]:
    """Write this process's records of the loggers ``gnntrain``, from level INFO on, and Python's
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
    """Python's warnings go to the handlers that are attached, and not to standard error."""
    if _OURS.getEffectiveLevel() > logging.INFO:
        _OURS.setLevel(logging.INFO)
    logging.captureWarnings(True)
    for logger in (_OURS, _WARNINGS):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in (_OURS, _WARNINGS):
            logger.removeHandler(handler)
        left = [isinstance(one, _RankLog | _Messages) for one in _WARNINGS.handlers]
        logging.captureWarnings(any(left))
        with contextlib.suppress(OSError):  # a file that was full tries to write its buffer again
            handler.close()
