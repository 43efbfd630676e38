"""A log file a rank, through Python's own ``logging``: the logger ``gnntrain`` and warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from pathlib import Path
from typing import Protocol

from gnntrain.errors import RunError

LOGGER = "gnntrain"
_WARNINGS = "py.warnings"  # where logging.captureWarnings sends what warnings.warn says
_PLACE = re.compile(r"^.*?:\d+: (?=\w*Warning: )")


class _MessageSink(Protocol):
    def on_message(self, text: str) -> None: ...


class RankLog(logging.FileHandler):
    """``logs/rank_N.log``: what a rank has to say, and Python's warnings.

    It listens from its making until :meth:`close`. A disk that refuses is told once to whoever
    else listens; what it refuses is lost, and the file goes on when there is room again.
    """

    _is_refused = False

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        line = f"%(asctime)s %(levelname)-7s rank {rank}: %(message)s"
        self.setFormatter(logging.Formatter(line))
        _attach(self)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Told once, until a record could be written again."""
        if not self._is_refused:
            self._is_refused = True
            reason = getattr(sys.exc_info()[1], "strerror", None) or sys.exc_info()[1]
            words = "%s cannot be written (%s); what it would say meanwhile is lost"
            logging.getLogger(LOGGER).warning(words, self.baseFilename, reason)

    def flush(self) -> None:
        """Flushes the file; after that it holds all there was to write."""
        super().flush()
        self._is_refused = False

    def close(self) -> None:
        """Stops listening and closes the file."""
        _detach(self)
        with contextlib.suppress(OSError):  # what it could not write it tries once more
            super().close()


class _Messages(logging.Handler):
    """Warnings and worse, as one-line messages for a person."""

    def __init__(self, sink: _MessageSink) -> None:
        super().__init__(logging.WARNING)
        self._sink = sink
        _attach(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.on_message(_one_line(record))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        _detach(self)
        super().close()


def open_rank_log(run_dir: Path, rank: int) -> logging.Handler:
    """Opens ``logs/rank_N.log`` of a run for this process; ``close()`` of the result ends it.

    Takes the records of the logger ``gnntrain`` from level INFO on, and all of Python's warnings,
    which no longer go to standard error.

    Raises:
        RunError: the file cannot be written.
    """
    path = run_dir / "logs" / f"rank_{rank}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return RankLog(path, rank)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def forward_warnings(sink: _MessageSink) -> logging.Handler:
    """Sends this process's warnings to ``sink.on_message``, a line each, until ``close()``.

    Meant for rank 0, with the console as the sink.
    """
    return _Messages(sink)


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


def _one_line(record: logging.LogRecord) -> str:
    """The message without the place and the source line that Python adds to a warning."""
    text = record.getMessage()
    if record.name == _WARNINGS:
        lines = [line for line in text.splitlines() if not line.startswith("  ")]
        text = _PLACE.sub("", "\n".join(lines))
    return " ".join(text.split())
