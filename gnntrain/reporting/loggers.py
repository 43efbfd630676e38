"""The loggers of a run: ``metrics.jsonl`` in every run, the others where they were chosen.

The packages of TensorBoard, Weights & Biases and MLflow are imported where a run chose them. A
resumed run goes on in the same run of the last two: ``trackers.json`` in the run directory has
their ids.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gnntrain.atomic_io import append_whole
from gnntrain.config.types import flattened
from gnntrain.reporting.rundir import RunDirectory, write_atomically
from gnntrain.training.records import EpochRecord, FitResult, Listener, RunInfo, Summary, json_safe

_MLFLOW_BATCH = 100

_log = logging.getLogger("gnntrain")


class Logger(Listener):
    """A listener that records epochs, made of the run directory, the resolved configuration in
    plain values, and the logger's own options."""

    name: ClassVar[str]  # in the configuration

    def __init__(self, run: RunDirectory, config: Mapping[str, Any], **options: Any) -> None:
        self.run, self.config, self.options = run, config, options

    def _tracked(self, new_id: str | None = None) -> str | None:
        """The id of this run in the logger's service, a new one written down; None: it has none."""
        ids = self.run.read("trackers.json") or {}
        if new_id is not None:
            ids[self.name] = new_id
            self.run.write("trackers.json", ids)
        return ids.get(self.name)


class Guarded(Listener):
    """A logger whose failure does not end the run: after a warning it gets no more events."""

    def __init__(self, logger: Logger) -> None:
        self._logger, self._has_failed = logger, False

    def on_start(self, info: RunInfo) -> None:
        self._send(self._logger.on_start, info)

    def on_epoch(self, record: EpochRecord) -> None:
        self._send(self._logger.on_epoch, record)

    def on_finish(self, summary: Summary) -> None:
        self._send(self._logger.on_finish, summary)

    def _send(self, event: Callable[[Any], None], argument: object) -> None:
        if self._has_failed:
            return
        try:
            event(argument)
        except Exception as error:
            self._has_failed = True
            words = "the logger %s failed and is left out from now on: %s: %s"
            _log.warning(words, self._logger.name, type(error).__name__, error)


class TableLogger(Logger):
    """A file with a row an epoch.

    It is written whole in the first epoch of a process, since a run that was killed may have left
    epochs after its last checkpoint, or half a line; for a new column; and after a write that
    failed: a disk that was full for a while costs nothing.
    """

    _columns: Sequence[str] = ()  # of the file; none where it may lack epochs
    _has_failed = False

    def text(self, records: Sequence[EpochRecord], *, is_whole: bool) -> str:
        """Rows, as the whole file or as some to be added."""
        raise NotImplementedError

    def on_start(self, info: RunInfo) -> None:
        self._records = [*info.records]

    def on_epoch(self, record: EpochRecord) -> None:
        self._records.append(record)
        self._write()

    def on_finish(self, summary: Summary) -> None:  # noqa: ARG002
        if self._records and not self._columns:
            self._write()

    def _write(self) -> None:
        path, last = self.run.path / f"metrics.{self.name}", self._records[-1]
        try:
            if last.flat().keys() <= {*self._columns}:
                append_whole(path, self.text([last], is_whole=False).encode())
                return
            rows = sorted((one.flat() for one in self._records), key=len, reverse=True)
            self._columns = [*dict.fromkeys(key for row in rows for key in row)]
            write_atomically(path, self.text(self._records, is_whole=True))
        except OSError as error:
            if not self._has_failed:
                words = "the logger %s cannot write (%s); what it misses follows when it can again"
                _log.warning(words, self.name, error.strerror or error)
            self._columns, self._has_failed = (), True


class JsonlLogger(TableLogger):
    """``metrics.jsonl``: one JSON object an epoch."""

    name = "jsonl"

    def text(self, records: Sequence[EpochRecord], *, is_whole: bool) -> str:  # noqa: ARG002
        rows = (json_safe(record.to_dict()) for record in records)
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


class CsvLogger(TableLogger):
    """``metrics.csv``: one row an epoch, below the columns of the longest row and then others."""

    name = "csv"

    def text(self, records: Sequence[EpochRecord], *, is_whole: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns)
        if is_whole:
            writer.writeheader()
        writer.writerows(json_safe(record.flat()) for record in records)
        return text.getvalue()


class TensorBoardLogger(Logger):
    """An event file in ``tensorboard/`` with the metrics as scalars."""

    name = "tensorboard"

    def on_start(self, info: RunInfo) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        # TensorBoard hides epochs that were written after the checkpoint of a resumed run.
        first = len(info.records) + 1 if info.records else None
        self._writer: Any = writer(str(self.run.path / "tensorboard"), purge_step=first)

    def on_epoch(self, record: EpochRecord) -> None:
        for name, value in record.flat().items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def on_finish(self, summary: Summary) -> None:  # noqa: ARG002
        self._writer.close()


class WandbLogger(Logger):
    """Weights & Biases. Options: arguments of ``wandb.init``."""

    name = "wandb"

    def on_start(self, info: RunInfo) -> None:
        """Start a run of W&B, or resume the one of this run directory."""
        kept = self._tracked()
        self._run: Any = importlib.import_module("wandb").init(
            **self.options,
            **({} if kept is None else {"id": kept, "resume": "allow"}),
            name=self.run.path.name,
            dir=str(self.run.path),
            config=json_safe({**self.config, "run_info": info.facts}),
        )
        self._tracked(self._run.id)

    def on_epoch(self, record: EpochRecord) -> None:
        self._run.log(record.flat(), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        self._run.summary.update(_summary_scalars(summary))
        self._run.finish(exit_code=0 if summary.status in ("completed", "pruned") else 1)


class MlflowLogger(Logger):
    """MLflow. Options: ``experiment``, ``tracking_uri``, and arguments of ``mlflow.start_run``."""

    name = "mlflow"

    def on_start(self, info: RunInfo) -> None:
        """Start a run of MLflow with the configuration, or resume the one of this run directory."""
        self._mlflow: Any = importlib.import_module("mlflow")
        mlflow, options = self._mlflow, dict(self.options)
        experiment, address = options.pop("experiment", None), options.pop("tracking_uri", None)
        if address is not None:
            mlflow.set_tracking_uri(address)
        if (kept := self._tracked()) is not None:
            mlflow.start_run(run_id=kept)
            return  # it has its parameters, and MLflow refuses to change one
        if experiment is not None:
            mlflow.set_experiment(experiment)
        self._tracked(mlflow.start_run(run_name=self.run.path.name, **options).info.run_id)
        parameters = [*flattened({**self.config, "run_info": info.facts}).items()]
        for start in range(0, len(parameters), _MLFLOW_BATCH):  # MLflow refuses larger batches
            mlflow.log_params(dict(parameters[start : start + _MLFLOW_BATCH]))

    def on_epoch(self, record: EpochRecord) -> None:
        self._log(record.flat(), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        self._log(_summary_scalars(summary))
        status = {"completed": "FINISHED", "failed": "FAILED"}.get(summary.status, "KILLED")
        self._mlflow.end_run(status=status)

    def _log(self, values: Mapping[str, float], **options: int) -> None:
        # MLflow refuses names with @, as in precision@100.
        named = {name.replace("@", "_at_"): value for name, value in values.items()}
        self._mlflow.log_metrics(named, **options)


_ALL = (JsonlLogger, CsvLogger, TensorBoardLogger, WandbLogger, MlflowLogger)
LOGGERS: dict[str, type[Logger]] = {logger.name: logger for logger in _ALL}


def build_loggers(
    options: Mapping[str, Mapping[str, Any] | None], run: RunDirectory, config: Mapping[str, Any]
) -> list[Listener]:
    """The loggers of a run, by their names and options; ``jsonl`` comes first, chosen or not: other
    commands read its file."""
    chosen = {"jsonl": None, **options}
    return [Guarded(LOGGERS[name](run, config, **(chosen[name] or {}))) for name in chosen]


def reached(run: RunDirectory, metric: str) -> FitResult:
    """The epochs in ``metrics.jsonl``, and the best of them by ``metric``."""
    result = FitResult()
    # No file; a run that was killed in the middle of a line; damage. A metric's own error is told.
    damage = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
    with contextlib.suppress(*damage, RecursionError):
        text = (run.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            result.add(EpochRecord.from_dict(json.loads(line)), metric)
    return result


def _summary_scalars(summary: Summary) -> dict[str, float]:
    """The numbers of ``summary.json``, such as ``summary/test/accuracy``."""
    found = flattened({"summary": summary.to_dict()})
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name.replace(".", "/"): value for name, value in numbers.items()}
