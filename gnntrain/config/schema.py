"""The one schema: every key with its type, range, default, meaning and unit.

Each class works on its own (`TrainerConfig(epochs=3)`); `Config()` is the default run's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gnntrain.config.datasets import (
    DATASET_VARIANTS,
    AnyDatasetConfig,
    FilesConfig,
    SyntheticConfig,
)
from gnntrain.config.models import MODEL_VARIANTS, AnyModelConfig, ModelConfig
from gnntrain.config.names import SAMPLER_NAMES
from gnntrain.config.sweeps import SWEEP_VARIANTS, AnySweepConfig, SweepConfig
from gnntrain.config.types import (
    JSON,
    NUMBER,
    FanOuts,
    FolderName,
    NonNegative,
    OneOf,
    OneOrMore,
    PathText,
    Positive,
    Ratio,
    Section,
    Seed,
    Share,
    Text,
    ZeroOrMore,
    text_of_number,
)
from gnntrain.plugins import SAMPLERS


class TaskConfig(Section):
    """What is learnt."""

    type: Literal["node_classification", "node_regression"] = "node_classification"
    """Classes of nodes, or quantities."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a regression: squared errors, or Huber's, which outliers sway less."""
    huber_delta: Positive = 1.0
    """Error, in standard deviations of the target, from which Huber's loss is linear."""


class SamplerConfig(Section):
    """How mini-batches are drawn."""

    name: Literal["neighbor", "full"] = "neighbor"
    """Neighbour-sampled mini-batches, or the full graph in one step an epoch."""
    fan_outs: FanOuts = (10, 10)
    """In-neighbours drawn a node, one number a layer, the hop next to the seed nodes first."""
    replace: bool = False
    """Draw neighbours with replacement."""
    backend: Annotated[str, OneOf(lambda: ("auto", *SAMPLER_NAMES), SAMPLERS)] = "auto"
    """Who draws: numba on the CPU, triton on the GPU, pyg's own loader; auto: what fits."""
    threads: ZeroOrMore | None = None
    """Background threads a rank that make batches; 0: none; null: 1 where a core is left for it."""
    prefetch: OneOrMore = 1
    """Batches made ahead a rank."""
    topology: Literal["auto", "resident", "pinned", "host"] = "auto"
    """Where the edges lie that are drawn from; auto: the first place that has room."""


class FeaturesConfig(Section):
    """Where feature rows lie while a GPU trains; a CPU always reads the store where it lies."""

    placement: Literal["auto", "resident", "sharded", "cached", "pinned", "memmap"] = "auto"
    """Where the rows lie that a GPU reads; auto chooses by size and says why."""
    cache_ratio: Ratio | None = None
    """Share of the nodes whose rows a GPU caches; null: by cache_bytes, else all that fit."""
    cache_bytes: ZeroOrMore | None = None
    """Bytes of GPU memory for cached rows; null: by cache_ratio, else all that is left."""
    hotness: Literal["presample", "degree"] = "presample"
    """Which rows are hot: those that batches drawn in advance read most, or by out-degree."""
    presample_epochs: OneOrMore = 2
    """Epochs drawn in advance to find the hot rows."""


class TrainerConfig(Section):
    """How the model is trained."""

    epochs: OneOrMore = 20
    """Most epochs to train."""
    batch_size: OneOrMore = 1024
    """Seed nodes a rank a step."""
    lr: Positive = 0.01
    """Learning rate."""
    weight_decay: NonNegative = 0.0
    """Weight decay (L2 for adam and sgd, decoupled for adamw)."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimiser."""
    momentum: Share = 0.9
    """Momentum of sgd; the others have their own."""
    scheduler: Literal["none", "cosine", "linear", "step", "plateau"] = "none"
    """How the learning rate falls: to 0 by cosine or line, by steps, or on a plateau of val."""
    scheduler_step: OneOrMore = 10
    """Epochs between two cuts (step), or without improvement before one (plateau)."""
    scheduler_gamma: Annotated[float, Field(gt=0, le=1), NUMBER] = 0.5
    """Factor of a cut (step, plateau)."""
    warmup_epochs: ZeroOrMore = 0
    """Epochs in which the learning rate rises from 0; at most `epochs`."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient; null: not clipped."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the model; fp16 needs a GPU."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cuda_graph: bool = False
    """Record a step once, from the draw to the update, and replay it: no launches by the host."""
    patience: ZeroOrMore = 0
    """Evaluations without a better val metric before training stops; 0: never stops early."""
    eval_every: OneOrMore = 1
    """Epochs from one evaluation to the next; the last epoch is always evaluated."""
    max_steps: OneOrMore | None = None
    """Most steps to train in all; null: until `epochs` are done."""
    seed: Seed = 0
    """Seed of weights, order, draws and dropout."""
    label_smoothing: Share = 0.0
    """Share of the target spread evenly over the classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weight of a node in the loss: equal, or by the rarity of its class in the training split."""
    init_from: Text | None = None
    """Run whose best weights training begins with; null: random weights."""
    drop_last: bool = False
    """Leave out an epoch's last batch where it is not full."""
    gpus: Literal["auto"] | ZeroOrMore = "auto"
    """GPUs of this machine, one rank each; 0: CPU; auto: all, or the CPU if there is none."""
    log_every: OneOrMore = 10
    """Steps from one progress line to the next."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """Where loss or gradient are not finite: end the run, or leave such steps out."""
    max_restarts: ZeroOrMore = 0
    """Times a run that fails starts again by itself; a loss that is not finite would only recur."""


class CheckpointConfig(Section):
    """When the state of a run is saved inside an epoch; after each epoch it always is."""

    every_steps: OneOrMore | None = None
    """Steps from one checkpoint to the next; null: steps are not counted."""
    every_minutes: Positive | None = 10.0
    """Minutes from one checkpoint to the next; null: time is not looked at."""


class DistributedConfig(Section):
    """How the ranks run together."""

    num_processes: OneOrMore = 1
    """Ranks on the CPU, when no GPU is used; at most 4 a core, or 8."""
    threads: OneOrMore | None = None
    """CPU threads a rank; null: the cores shared out."""
    timeout: Positive = 600.0
    """Seconds a rank waits for the others before the run fails and names those that are missing."""


class EvaluationConfig(Section):
    """How the metrics are computed."""

    name: Literal["layerwise", "sampled"] = "layerwise"
    """Exact, layer by layer with all neighbours; or on sampled neighbours."""
    ranks: Annotated[Literal["all", "0"], BeforeValidator(text_of_number)] = "all"
    """Ranks that take part: all, or rank 0 alone."""
    memory_limit: Positive | None = None
    """Largest layer, in GiB, kept in memory, not on disk; null: a quarter of all memory."""
    batch_size: OneOrMore = 4096
    """Nodes a rank a step of sampled."""
    fan_outs: FanOuts | None = None
    """In-neighbours drawn by sampled, one number a layer; null: as sampler.fan_outs."""
    max_steps: OneOrMore | None = None
    """Most batches of a split that sampled computes, on all ranks together; null: all nodes."""


class FileLoggerConfig(Section):
    """A logger of gnntrain's own. It has no options."""


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

    jsonl: FileLoggerConfig | None = None
    """Epochs as lines of JSON: metrics.jsonl."""
    csv: FileLoggerConfig | None = None
    """Epochs as rows of a table: metrics.csv."""
    tensorboard: FileLoggerConfig | None = None
    """TensorBoard event files: tensorboard/."""
    wandb: WandBConfig | None = None
    """Weights & Biases."""
    mlflow: MLflowConfig | None = None
    """MLflow."""

    def chosen(self) -> dict[str, Section]:
        """The chosen loggers' options, by name."""
        options = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: option for name, option in options.items() if option is not None}


class RunConfig(Section):
    """Where the results go."""

    dir: PathText | None = None
    """The run directory itself; null: runs/<name>."""
    name: FolderName | None = None
    """The run's name; null: made up from the data set, the model and the time."""


class Config(Section):
    """Everything a run is asked for."""

    dataset: AnyDatasetConfig = Field(default_factory=SyntheticConfig)
    """The graph."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    """What is learnt."""
    model: AnyModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    sampler: SamplerConfig = Field(default_factory=SamplerConfig)
    """How mini-batches are drawn."""
    features: FeaturesConfig = Field(default_factory=FeaturesConfig)
    """Where feature rows lie while a GPU trains."""
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    """How the model is trained."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When the state of a run is saved."""
    distributed: DistributedConfig = Field(default_factory=DistributedConfig)
    """How the ranks run together."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """How the metrics are computed."""
    logger: LoggerConfig = Field(default_factory=lambda: LoggerConfig(jsonl=FileLoggerConfig()))
    """Who records the epochs."""
    run: RunConfig = Field(default_factory=RunConfig)
    """Where the results go."""
    sweep: AnySweepConfig = Field(default_factory=SweepConfig)
    """What -m does; one run alone does not look at it."""

    variants: ClassVar = {
        "dataset": DATASET_VARIANTS,
        "model": MODEL_VARIANTS,
        "sweep": SWEEP_VARIANTS,
    }

    @model_validator(mode="after")
    def _labels_of_task(self) -> Self:
        """`task.type=node_regression` says what the labels of a user's files are."""
        data = self.dataset
        is_open = isinstance(data, FilesConfig) and data.task == "auto"
        if self.task.type != "node_regression" or not is_open:
            return self
        known = data.model_copy(update={"task": "regression"})
        return self.model_copy(update={"dataset": known})

    def to_dict(self) -> JSON:
        """The configuration as plain data for JSON or YAML; `from_dict` gives it back exactly."""
        plain = self.model_dump(mode="json")
        plain["logger"] = {name: plain["logger"][name] for name in self.logger.chosen()}
        return plain
