"""Programs that draw the curves of many runs: TensorBoard, Weights & Biases, MLflow.

Each is imported only where it was chosen.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gnntrain.reporting.logfiles import Logger
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.records import EpochRecord, RunInfo, Summary, json_safe

_MLFLOW_BATCH = 100
_MLFLOW_STATUS = {"completed": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class TensorBoardLogger(Logger):
    """Event files in ``tensorboard/``: a scalar each by epoch; configuration and end as text."""

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._writer: Any = None

    def on_start(self, info: RunInfo) -> None:
        """Opens the event file."""
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import

        # Epochs that an earlier part of the run told after the checkpoint are hidden.
        purge_step = info.first_epoch if info.first_epoch > 1 else None
        self._writer = SummaryWriter(str(self.run.path / "tensorboard"), purge_step=purge_step)
        self._add_text("config", self.config)
        self._add_text("run", dataclasses.asdict(info))

    def on_epoch(self, record: EpochRecord) -> None:
        """Adds the record's scalars at its epoch."""
        for name, value in _scalars(record):
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def on_finish(self, summary: Summary) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._add_text("summary", summary.to_dict())
            self._writer.close()

    def _add_text(self, name: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(json_safe(value), indent=2, default=str)
        self._writer.add_text(name, f"```\n{text}\n```")


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
        """Starts the run."""
        config = {**self.config, "run_info": dataclasses.asdict(info)}
        self._run = self._wandb.init(
            **self._options, name=self.run.name, dir=str(self.run.path), config=json_safe(config)
        )

    def on_epoch(self, record: EpochRecord) -> None:
        """Logs the record at its epoch."""
        self._run.log(dict(_scalars(record)), step=record.epoch)

    def on_finish(self, summary: Summary) -> None:
        """Adds the summary's numbers and ends the run."""
        if self._run is not None:
            self._run.summary.update(_summary_scalars(summary))
            self._run.finish(exit_code=0 if summary.status == "completed" else 1)


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
        """Starts the run and keeps the configuration."""
        if self._tracking_uri is not None:
            self._mlflow.set_tracking_uri(self._tracking_uri)
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=self.run.name)
        self._started = True
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
