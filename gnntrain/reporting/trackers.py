"""Programs that draw the curves of many runs: TensorBoard, Weights & Biases, MLflow.

Each is imported only where it was chosen. A run that is resumed goes on in the same run of
Weights & Biases and MLflow: their ids are kept in ``trackers.json`` of the run directory.
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

from gnntrain.reporting.logfiles import Logger, append_whole
from gnntrain.reporting.rundir import RunDirectory, write_atomically
from gnntrain.training.records import EpochRecord, RunInfo, Summary, json_safe

_IDS = "trackers.json"
_MLFLOW_BATCH = 100
_MLFLOW_STATUS = {
    "completed": "FINISHED",
    "pruned": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}


class TensorBoardLogger(Logger):
    """An event file in ``tensorboard/``: a scalar each by epoch; configuration and end as text.

    TensorBoard's own writer leaves the writing to a thread, which a full disk ends for good; here
    an epoch's events are written at once, or not at all and again later.
    """

    catches_up = True

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._path: Path | None = None

    def on_start(self, info: RunInfo) -> None:
        """Begins the event file."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        path = self.run.path / "tensorboard" / name
        path.parent.mkdir(exist_ok=True)
        head: list[dict[str, Any]] = [{"file_version": "brain.Event:2"}]
        if info.first_epoch > 1:
            # Epochs that an earlier part of the run told after the checkpoint are hidden.
            head.append({"step": info.first_epoch, "session_log": {"status": "START"}})
        config = _text_event("config", self.config)
        self._append(path, [*head, config, _text_event("run", dataclasses.asdict(info))])
        self._path = path

    def on_epoch(self, record: EpochRecord) -> None:
        """Adds the record's scalars at its epoch."""
        values = [{"tag": name, "simple_value": value} for name, value in _scalars(record)]
        self._append(self._path, [{"step": record.epoch, "summary": {"value": values}}])

    def on_finish(self, summary: Summary) -> None:
        """Adds the run's end."""
        self._append(self._path, [_text_event("summary", summary.to_dict())])

    def _append(self, path: Path | None, events: Sequence[Mapping[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if path is None:  # ended before it began
            return
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            writer.write(Event(wall_time=time.time(), **event).SerializeToString())
        append_whole(path, records.getvalue())


def _text_event(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """What TensorBoard shows as text under ``name``."""
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
    """Weights & Biases, where installed.

    Args:
        run: The run directory; its name is the run's name.
        config: The resolved configuration, kept with the run.
        project: The project the run appears in.
        entity: User or team; the account's default where ``None``.
        mode: ``online``, ``offline`` or ``disabled``; ``WANDB_MODE`` decides where ``None``.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Mapping[str, Any],
        *,
        project: str = "gnntrain",
        entity: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(run, config)
        self._wandb = importlib.import_module("wandb")
        self._options = {"project": project, "entity": entity, "mode": mode}
        self._run: Any = None

    def on_start(self, info: RunInfo) -> None:
        """Starts the run, or goes on with the one that this run began."""
        config = {**self.config, "run_info": dataclasses.asdict(info)}
        kept = kept_id(self.run, "wandb")
        self._run = self._wandb.init(
            **self._options,
            **({} if kept is None else {"id": kept, "resume": "allow"}),
            name=self.run.name,
            dir=str(self.run.path),
            config=json_safe(config),
        )
        keep_id(self.run, "wandb", self._run.id)

    def on_epoch(self, record: EpochRecord) -> None:
        """Logs the record at its epoch."""
        self._run.log(dict(_scalars(record)), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        """Adds the summary's numbers and ends the run."""
        if self._run is not None:
            self._run.summary.update(_summary_scalars(summary))
            self._run.finish(exit_code=0 if summary.status in ("completed", "pruned") else 1)


class MlflowLogger(Logger):
    """MLflow, where installed.

    Args:
        run: The run directory; its name is the run's name.
        config: The resolved configuration, kept as parameters with dotted names.
        tracking_uri: Where to; ``MLFLOW_TRACKING_URI`` or MLflow's default decides where ``None``.
        experiment: The experiment the run appears in.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Mapping[str, Any],
        *,
        tracking_uri: str | None = None,
        experiment: str = "gnntrain",
    ) -> None:
        super().__init__(run, config)
        self._mlflow = importlib.import_module("mlflow")
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._started = False

    def on_start(self, info: RunInfo) -> None:
        """Starts the run and keeps the configuration, or goes on with the one it began."""
        if self._tracking_uri is not None:
            self._mlflow.set_tracking_uri(self._tracking_uri)
        kept = kept_id(self.run, "mlflow")
        if kept is not None:
            self._mlflow.start_run(run_id=kept)
            self._started = True
            return  # its parameters are there, and MLflow refuses to change one
        self._mlflow.set_experiment(self._experiment)
        started = self._mlflow.start_run(run_name=self.run.name)
        self._started = True
        keep_id(self.run, "mlflow", started.info.run_id)
        parameters = [*_dotted({**self.config, "run_info": dataclasses.asdict(info)})]
        for start in range(0, len(parameters), _MLFLOW_BATCH):  # more at once are refused
            self._mlflow.log_params(dict(parameters[start : start + _MLFLOW_BATCH]))

    def on_epoch(self, record: EpochRecord) -> None:
        """Logs the record at its epoch."""
        self._mlflow.log_metrics(dict(_scalars(record)), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        """Adds the summary's numbers and ends the run."""
        if self._started:
            self._mlflow.log_metrics(_summary_scalars(summary))
            self._mlflow.end_run(status=_MLFLOW_STATUS[summary.status])


def kept_id(run: RunDirectory, service: str) -> str | None:
    """The id under which a service knows the run; ``None`` where it does not yet."""
    return _kept_ids(run).get(service)


def keep_id(run: RunDirectory, service: str, run_id: str) -> None:
    """Keep the id under which a service knows the run."""
    ids = _kept_ids(run) | {service: run_id}
    write_atomically(run.path / _IDS, json.dumps(ids, indent=2) + "\n")


def _kept_ids(run: RunDirectory) -> dict[str, str]:
    path = run.path / _IDS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _scalars(record: EpochRecord) -> Iterator[tuple[str, int | float]]:
    return ((name, value) for name, value in record.flat().items() if name != "epoch")


def _summary_scalars(summary: Summary) -> dict[str, float]:
    """The numbers that tell a finished run from others, under ``best/`` and ``total/``."""
    scalars = {
        f"best/{split}/{name}": value
        for split, metrics in summary.metrics.items()
        for name, value in metrics.items()
    }
    if summary.best_epoch is not None:
        scalars["best/epoch"] = summary.best_epoch
    return scalars | {"total/seconds": summary.seconds_total, "total/epochs": summary.epochs}


def _dotted(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
