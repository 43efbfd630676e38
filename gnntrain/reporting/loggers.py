"""The loggers of a run, each guarded: a logger that fails does not end the run.

``jsonl`` is in every run, since other commands read ``metrics.jsonl``; the others run where they
were chosen.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from gnntrain.reporting.logfiles import CsvLogger, JsonlLogger, Logger
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
from gnntrain.training.records import EpochRecord, Listener, RunInfo, StepProgress, Summary

LOGGERS: dict[str, type[Logger]] = {
    "jsonl": JsonlLogger,
    "csv": CsvLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}

_log = logging.getLogger("gnntrain")


def build_loggers(
    options: Mapping[str, Mapping[str, Any] | None], run: RunDirectory, config: Mapping[str, Any]
) -> list[Listener]:
    """The loggers of a run, each guarded; ``jsonl`` comes first, chosen or not.

    Args:
        options: Options by name of the logger.
        run: The run directory.
        config: The resolved configuration, plain values, for loggers that record it.
    """
    chosen = {"jsonl": None, **options}
    return [Guarded(name, LOGGERS[name](run, config, **(chosen[name] or {}))) for name in chosen]


class Guarded:
    """A listener whose failures do not end the run; the first one is a warning.

    After an OSError, a listener that catches up (see `Logger`) gets the events that it missed
    before the next one: a disk that was full for a while costs nothing. After any other failure
    the listener gets no more events.

    Args:
        name: Name of the listener, for the warning.
        callback: The listener.
    """

    def __init__(self, name: str, callback: Logger) -> None:
        self.name = name
        self._callback: Logger | None = callback
        self._catches_up = getattr(callback, "catches_up", False)
        self._missed: deque[tuple[str, object]] = deque()

    def on_start(self, info: RunInfo) -> None:
        """Pass on."""
        self._pass_on("on_start", info)

    def on_step(self, progress: StepProgress) -> None:
        """Nothing: no logger records steps."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Pass on."""
        self._pass_on("on_epoch", record)

    def on_message(self, text: str) -> None:
        """Nothing: no logger records notices."""

    def on_finish(self, summary: Summary) -> None:
        """Pass on."""
        self._pass_on("on_finish", summary)

    def _pass_on(self, method: str, argument: object) -> None:
        was_behind = bool(self._missed)
        self._missed.append((method, argument))
        while self._missed and self._callback is not None:
            try:
                name, value = self._missed[0]
                getattr(self._callback, name)(value)
            except Exception as error:
                if self._catches_up and isinstance(error, OSError):
                    if not was_behind:
                        words = "the logger %s cannot write (%s); what it misses follows when it "
                        _log.warning(f"{words}can again", self.name, error.strerror or error)
                    return
                self._callback = None
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                words = "the logger %s failed and is left out from now on: %s"
                _log.warning(words, self.name, reason)
            else:
                self._missed.popleft()
        self._missed.clear()
