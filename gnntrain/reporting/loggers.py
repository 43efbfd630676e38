"""Which loggers a run has, besides the console, and what happens when one fails.

``metrics.jsonl`` belongs to every run directory, so ``jsonl`` always runs, named or not; the
others run where named. A logger that fails while a run goes on (a full disk, a lost network) is
dropped with one warning: nobody loses a training for a curve.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gnntrain.errors import UserError
from gnntrain.reporting.logfiles import CsvLogger, JsonlLogger, Logger
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
from gnntrain.training.records import EpochRecord, Listener, RunInfo, StepProgress, Summary

LOGGERS: dict[str, Callable[..., Logger]] = {
    "jsonl": JsonlLogger,
    "csv": CsvLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}
_PACKAGES = ("tensorboard", "wandb", "mlflow")  # the loggers that are a package's, by its name

_log = logging.getLogger("gnntrain")


class Guarded:
    """A listener whose failures do not end the run, and are told once.

    One that catches up (see `Logger`) and failed with an OSError is told again what it missed,
    with whatever comes next, so that a disk that was full for a while costs nothing. Any other is
    dropped.

    Args:
        name: What to call it in the warning.
        callback: Whom to guard.
    """

    def __init__(self, name: str, callback: Listener) -> None:
        self.name = name
        self._callback: Listener | None = callback
        self._catches_up: bool = getattr(callback, "catches_up", False)
        self._missed: deque[tuple[str, object]] = deque()

    def on_start(self, info: RunInfo) -> None:
        """Passed on."""
        self._pass_on("on_start", info)

    def on_step(self, progress: StepProgress) -> None:
        """Passed on, but never later."""
        if not self._missed:
            self._pass_on("on_step", progress)

    def on_epoch(self, record: EpochRecord) -> None:
        """Passed on."""
        self._pass_on("on_epoch", record)

    def on_message(self, text: str) -> None:
        """Passed on."""
        self._pass_on("on_message", text)

    def on_finish(self, summary: Summary) -> None:
        """Passed on."""
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
                    self._tell_once(was_behind, error)
                    return
                self._drop(error)
            else:
                self._missed.popleft()
        self._missed.clear()

    def _tell_once(self, was_behind: bool, error: OSError) -> None:
        if not was_behind:
            words = "the logger %s cannot write (%s); what it misses follows when it can again"
            _log.warning(words, self.name, error.strerror or error)

    def _drop(self, error: Exception) -> None:
        self._callback = None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        _log.warning("the logger %s failed and is left out from now on: %s", self.name, reason)


def check_loggers(names: Collection[str]) -> None:
    """Says what is wrong with a choice of loggers, importing none of them.

    Raises:
        UserError: a name is unknown, or its package is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            near = difflib.get_close_matches(name, LOGGERS, n=1)
            raise UserError(
                f"there is no logger {name!r}",
                f"Did you mean {near[0]}?" if near else f"There are {', '.join(LOGGERS)}.",
            )
        if name in _PACKAGES and not _is_installed(name):
            rest = ",".join(other for other in names if other != name) or "jsonl"
            raise UserError(
                f"the logger {name} needs the package {name}, which is not installed",
                f"Install it with `pip install {name}`, or leave it out: logger=[{rest}].",
            )


def build_loggers(
    logger_config: Mapping[str, Mapping[str, Any] | None],
    run: RunDirectory,
    config: Mapping[str, Any],
) -> list[Listener]:
    """The loggers of a run, each guarded; ``jsonl`` comes first, named or not.

    Args:
        logger_config: Options by name of the logger.
        run: Where the files go.
        config: The resolved configuration, plain values, for those that keep it.

    Raises:
        UserError: a name or an option is unknown, or a package is not installed.
    """
    check_loggers(logger_config)
    chosen = {"jsonl": None, **logger_config}
    return [Guarded(name, _build(name, chosen[name] or {}, run, config)) for name in chosen]


def _build(
    name: str, options: Mapping[str, Any], run: RunDirectory, config: Mapping[str, Any]
) -> Logger:
    parameters = inspect.signature(LOGGERS[name]).parameters
    known = [option for option in parameters if option not in ("run", "config")]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UserError(
            f"the logger {name} has no option {', '.join(unknown)}",
            f"It has {', '.join(known)}." if known else "It has none.",
        )
    return LOGGERS[name](run, config, **options)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported already, from no file
        return True
