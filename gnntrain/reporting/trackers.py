"""Loggers for TensorBoard, Weights & Biases and MLflow, imported where a run chose them.

A resumed run goes on in the same run of Weights & Biases and MLflow: ``trackers.json`` in the run
directory has their ids.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnntrain.config.types import flattened
from gnntrain.reporting.logfiles import Logger, append_whole
from gnntrain.reporting.rundir import RunDirectory, write_atomically
from gnntrain.training.records import EpochRecord, RunInfo, Summary, json_safe

_MLFLOW_BATCH = 100
_MLFLOW_STATUS = {
    "completed": "FINISHED",
    "pruned": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}


class TensorBoardLogger(Logger):
    """An event file in ``tensorboard/``: metrics as scalars; configuration and summary as text.

    TensorBoard's own writer writes in a thread, which ends for good on a full disk. Here the
    events of an epoch are written at once; what fails can be written again.
    """

    catches_up = True

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._path: Path | None = None

    def on_start(self, info: RunInfo) -> None:
        """Begin the event file."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        path = self.run.path / "tensorboard" / name
        path.parent.mkdir(exist_ok=True)
        head: list[dict[str, Any]] = [{"file_version": "brain.Event:2"}]
        if info.first_epoch > 1:
            # TensorBoard hides epochs that were written after the checkpoint.
            head.append({"step": info.first_epoch, "session_log": {"status": "START"}})
        config = _text_event("config", self.config)
        self._append(path, [*head, config, _text_event("run", dataclasses.asdict(info))])
        self._path = path

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the record's scalars."""
        values = [{"tag": name, "simple_value": value} for name, value in _scalars(record)]
        self._append(self._path, [{"step": record.epoch, "summary": {"value": values}}])

    def on_finish(self, summary: Summary) -> None:
        """Add the summary."""
        self._append(self._path, [_text_event("summary", summary.to_dict())])

    def _append(self, path: Path | None, events: Sequence[Mapping[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if path is None:  # the run ended before its start
            return
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            writer.write(Event(wall_time=time.time(), **event).SerializeToString())
        append_whole(path, records.getvalue())


def _text_event(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """An event that TensorBoard shows as text under ``name``."""
    text = json.dumps(json_safe(value), indent=2, default=str)
    tensor = {
        "dtype": "DT_STRING",
        "string_val": [f"```\n{text}\n```".encode()],
        "tensor_shape": {"dim": [{"size": 1}]},
    }
    metadata = {"plugin_data": {"plugin_name": "text"}}
    value = {"tag": f"{name}/text_summary", "metadata": metadata, "tensor": tensor}
    return {"summary": {"value": [value]}}


class WandbLogger(Logger):
    """Weights & Biases. Options: ``project``, ``entity``, ``mode`` (``WANDB_MODE`` if None)."""

    _run: Any = None

    def on_start(self, info: RunInfo) -> None:
        """Start a run of W&B, or resume the one of this run directory."""
        config = {**self.config, "run_info": dataclasses.asdict(info)}
        kept = kept_ids(self.run).get("wandb")
        self._run = importlib.import_module("wandb").init(
            **self.options,
            **({} if kept is None else {"id": kept, "resume": "allow"}),
            name=self.run.name,
            dir=str(self.run.path),
            config=json_safe(config),
        )
        keep_id(self.run, "wandb", self._run.id)

    def on_epoch(self, record: EpochRecord) -> None:
        """Log the record at its epoch."""
        self._run.log(dict(_scalars(record)), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        """Log the summary and end the run."""
        if self._run is not None:
            self._run.summary.update(_summary_scalars(summary))
            self._run.finish(exit_code=0 if summary.status in ("completed", "pruned") else 1)


class MlflowLogger(Logger):
    """MLflow. Options: ``experiment``; ``tracking_uri`` (``MLFLOW_TRACKING_URI`` if None)."""

    _mlflow: Any = None

    def on_start(self, info: RunInfo) -> None:
        """Start a run of MLflow with the configuration, or resume the one of this run directory."""
        self._mlflow = mlflow = importlib.import_module("mlflow")
        if self.options.get("tracking_uri") is not None:
            mlflow.set_tracking_uri(self.options["tracking_uri"])
        kept = kept_ids(self.run).get("mlflow")
        if kept is not None:
            mlflow.start_run(run_id=kept)
            return  # it has its parameters, and MLflow refuses to change one
        mlflow.set_experiment(self.options.get("experiment"))
        keep_id(self.run, "mlflow", mlflow.start_run(run_name=self.run.name).info.run_id)
        parameters = [*flattened({**self.config, "run_info": dataclasses.asdict(info)}).items()]
        for start in range(0, len(parameters), _MLFLOW_BATCH):  # MLflow refuses larger batches
            mlflow.log_params(dict(parameters[start : start + _MLFLOW_BATCH]))

    def on_epoch(self, record: EpochRecord) -> None:
        """Log the record at its epoch."""
        self._log(dict(_scalars(record)), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        """Log the summary and end the run."""
        if self._mlflow is not None:
            self._log(_summary_scalars(summary))
            self._mlflow.end_run(status=_MLFLOW_STATUS[summary.status])

    def _log(self, values: Mapping[str, float], **options: int) -> None:
        # MLflow refuses names with @, as in precision@100.
        named = {name.replace("@", "_at_"): value for name, value in values.items()}
        self._mlflow.log_metrics(named, **options)


def kept_ids(run: RunDirectory) -> dict[str, str]:
    """The run's ids by service."""
    path = run.path / "trackers.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def keep_id(run: RunDirectory, service: str, run_id: str) -> None:
    """Write the run's id at a service to the run directory."""
    ids = kept_ids(run) | {service: run_id}
    write_atomically(run.path / "trackers.json", json.dumps(ids, indent=2) + "\n")


def _scalars(record: EpochRecord) -> Iterator[tuple[str, int | float]]:
    return ((name, value) for name, value in record.flat().items() if name != "epoch")


def _summary_scalars(summary: Summary) -> dict[str, float]:
    """The final numbers, under ``best/`` and ``total/``."""
    scalars = {
        f"best/{split}/{name}": value
        for split, metrics in summary.metrics.items()
        for name, value in metrics.items()
    }
    if summary.best_epoch is not None:
        scalars["best/epoch"] = summary.best_epoch
    return scalars | {"total/seconds": summary.seconds_total, "total/epochs": summary.epochs}
