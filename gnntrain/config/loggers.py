"""The loggers' options."""

from __future__ import annotations

from typing import Literal

from gnntrain.config.types import Section, Text


class JSONLConfig(Section):
    """Epochs as lines of JSON."""


class CSVConfig(Section):
    """Epochs as rows of a table."""


class TensorBoardConfig(Section):
    """TensorBoard event files."""


class WandBConfig(Section):
    """Weights & Biases."""

    project: Text = "gnntrain"
    """Project the run belongs to."""
    entity: Text | None = None
    """User or team; null: the account's default."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Send at once, keep on disk for `wandb sync`, or neither; null: as WANDB_MODE says."""


class MLflowConfig(Section):
    """MLflow."""

    experiment: Text = "gnntrain"
    """Experiment the run belongs to."""
    tracking_uri: Text | None = None
    """Address of the tracking server; null: as MLFLOW_TRACKING_URI says, else ./mlruns."""


class LoggerConfig(Section):
    """Who records the epochs; null: not chosen."""

    jsonl: JSONLConfig | None = None
    """Epochs as lines of JSON: metrics.jsonl."""
    csv: CSVConfig | None = None
    """Epochs as rows of a table: metrics.csv."""
    tensorboard: TensorBoardConfig | None = None
    """TensorBoard event files: tensorboard/."""
    wandb: WandBConfig | None = None
    """Weights & Biases."""
    mlflow: MLflowConfig | None = None
    """MLflow."""

    def chosen(self) -> dict[str, Section]:
        """The chosen loggers' options, by name."""
        options = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: option for name, option in options.items() if option is not None}
