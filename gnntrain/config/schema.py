"""The one schema: every key with its type, range, default, meaning and unit.

Each class works on its own (`TrainerConfig(epochs=3)`); `Config()` is the default run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from gnntrain.config.features import FeaturesConfig
from gnntrain.config.loggers import JSONLConfig, LoggerConfig
from gnntrain.config.models import ModelConfig
from gnntrain.config.names import (
    BUILTIN_NAMES,
    DATASET_DEFAULTS,
    SAMPLER_NAMES,
    SYNTHETIC_NAMES,
)
from gnntrain.config.sweeps import AnySweepConfig, SweepConfig
from gnntrain.config.types import (
    JSON,
    Expected,
    FanOuts,
    FolderName,
    Names,
    NonNegative,
    Number,
    OneOf,
    OneOrMore,
    PathText,
    Positive,
    Ratios,
    Section,
    Seed,
    Share,
    Text,
    ZeroOrMore,
    text_of_number,
)
from gnntrain.metrics import BUILT_IN_METRICS
from gnntrain.plugins import DATASETS, METRICS, SAMPLERS


class DatasetConfig(Section):
    """The keys every data set has."""

    name: Text = "synthetic"
    """Name of the data set."""
    root: PathText | None = None
    """Folder of the raw files, read or downloaded to; null: the user's cache folder."""
    store_dir: PathText | None = None
    """Folder of the prepared graph stores; null: the user's cache folder."""
    to_undirected: bool = False
    """Store every edge in both directions."""
    add_self_loops: bool = False
    """Store an edge from every node to itself."""
    normalize_features: bool = False
    """Scale every node's features to a sum of 1."""
    feature_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the stored features."""

    @property
    def option(self) -> str:
        """The option of the group `dataset` whose keys these are: `dataset=OPTION`."""
        return self.name

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        name = raw.get("name", cls.model_fields["name"].default)
        return {**DATASET_DEFAULTS.get(str(name), {}), **raw}


class SyntheticConfig(DatasetConfig):
    """A random graph of communities: a degree-corrected stochastic block model."""

    name: Literal["synthetic", "synthetic_reddit", "synthetic_products"] = "synthetic"
    """Name of the data set; each has its own default sizes."""
    num_nodes: OneOrMore = 10_000
    """Nodes of the graph."""
    avg_degree: NonNegative = 15.0
    """Mean number of in-neighbours of a node."""
    num_edges: ZeroOrMore | None = None
    """Exact number of stored edges, each direction counted; null: from avg_degree."""
    num_features: OneOrMore = 64
    """Features of a node."""
    num_classes: Annotated[int, Field(ge=2)] = 8
    """Classes, one to a community."""
    homophily: Annotated[Number, Field(ge=0, le=1)] = 0.55
    """Share of edges that join two nodes of one class."""
    degree_exponent: Annotated[Number, Field(gt=1)] = 2.5
    """Exponent of the power law of degrees; smaller: larger hubs."""
    isolated_fraction: Share = 0.01
    """Share of nodes without any edge."""
    feature_signal: NonNegative = 2.0
    """Distance between two classes' mean features, in standard deviations of the noise."""
    num_train: ZeroOrMore | None = None
    """Nodes to train on; null: a fifth of all."""
    num_val: ZeroOrMore | None = None
    """Nodes to validate on; null: a fifth of all."""
    num_test: ZeroOrMore | None = None
    """Nodes to test on; null: all that are left."""
    seed: Seed = 0
    """Seed of the graph; the same seed gives the same graph."""


class BuiltinConfig(DatasetConfig):
    """A published data set, through the classes of PyG and OGB, or an installed package's."""

    name: Annotated[str, OneOf(lambda: BUILTIN_NAMES, DATASETS)] = "cora"
    """Name of the data set."""
    split: ZeroOrMore = 0
    """Which of the data set's train/val/test splits, where it has several."""


def _own_name(name: str) -> str:
    """A user's own data set may not be taken for another one, nor break a line."""
    if name in (*SYNTHETIC_NAMES, *BUILTIN_NAMES) or not name.isprintable():
        raise ValueError(name)
    return name


class FilesConfig(DatasetConfig):
    """A user's own graph, read from CSV, Parquet, npy, npz or pt files."""

    name: Annotated[
        Text,
        AfterValidator(_own_name),
        Expected("a name in one line that no data set of gnntrain has"),
    ] = "files"
    """Name of the data set, as consoles, folders and reports show it."""
    data: PathText | None = None
    """One file of a whole graph, such as a saved PyG Data; in place of edges and features."""
    edges: PathText | None = None
    """File of edges, one a row: source, target and perhaps a weight."""
    features: PathText | None = None
    """File of node features, one node a row; it defines the nodes."""
    labels: PathText | None = None
    """File of node labels; null: a column of the features file."""
    split: ZeroOrMore | PathText | None = None
    """File that says train, val or test; or the number of a drawn split (or of a mask's column);
    null: a column of the other files, else drawn."""
    split_ratio: Ratios = (0.6, 0.2, 0.2)
    """Shares of train, val and test where the split is drawn."""
    split_seed: Seed = 0
    """Seed of the drawn splits; dataset.split=K is the K-th of them."""
    stratify: bool = False
    """Draw the split within each class, or each tenth of a quantity, so that all three have the
    same share of it."""
    header: Literal["auto"] | bool = "auto"
    """Whether CSV files start with a line of column names."""
    source_column: Text | None = None
    """Column of an edge's source node, by name or number from 0; null: found by its name, or the
    first of two columns."""
    target_column: Text | None = None
    """Column of an edge's target node; null: found by its name, or the second of two columns."""
    weight_column: Text | None = None
    """Column of an edge's weight; null: edges have no weight."""
    id_column: Text | None = None
    """Column of the node id; null: found by itself; none: the rows are the nodes 0, 1, 2, ..."""
    label_column: Names | None = None
    """Column of the label, or a list of columns; null: found by itself."""
    split_column: Text | None = None
    """Column that says train, val or test; null: found by itself."""
    feature_columns: Names | None = None
    """Columns of features, by name or pattern; null: all columns that have no other use."""
    ignore: Names = ()
    """Columns that are not read, by name or pattern."""
    categorical: Names = ()
    """Columns of which each value becomes a feature of 0 and 1, by name or pattern."""
    missing: Literal["refuse", "mean", "zero", "indicator"] = "refuse"
    """What a missing feature becomes: a bad row, the training nodes' mean, 0, or the mean beside a
    feature that says so."""
    standardize: bool = False
    """Scale every feature to mean 0 and standard deviation 1 over the training nodes."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of the numbers in text files."""
    encoding: Text = "auto"
    """Encoding of text files; auto: UTF-8, UTF-16 or Latin-1, seen from the bytes."""
    task: Literal["auto", "multiclass", "binary", "multilabel", "regression"] = "auto"
    """What the labels are; auto: seen from the labels, and regression by task.type."""
    metric: Annotated[str, OneOf(lambda: ("auto", *BUILT_IN_METRICS), METRICS)] = "auto"
    """What the best epoch is chosen by; auto: what suits the task."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do with a row that cannot be read: stop and list them, or leave them out."""

    @property
    def option(self) -> str:
        """`files`, whatever the data set is called."""
        return "files"

    @model_validator(mode="before")
    @classmethod
    def _below_root(cls, raw: Any) -> Any:
        """The files lie below `root`, where that is given and their paths are not absolute."""
        if not isinstance(raw, Mapping) or not isinstance(root := raw.get("root"), str):
            return raw
        files = {
            key: str(Path(root) / given)
            for key in ("data", "edges", "features", "labels", "split")
            if isinstance(given := raw.get(key), str) and given and not given.startswith("~")
        }
        return {**raw, **files}


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
    scheduler_gamma: Annotated[Number, Field(gt=0, le=1)] = 0.5
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


class RunConfig(Section):
    """Where the results go."""

    dir: PathText | None = None
    """The run directory itself; null: runs/<name>."""
    name: FolderName | None = None
    """The run's name; null: made up from the data set, the model and the time."""


AnyDatasetConfig = SyntheticConfig | BuiltinConfig | FilesConfig


class Config(Section):
    """Everything a run is asked for."""

    dataset: AnyDatasetConfig = SyntheticConfig()
    """The graph."""
    task: TaskConfig = TaskConfig()
    """What is learnt."""
    model: SerializeAsAny[ModelConfig] = ModelConfig()
    """The network."""
    sampler: SamplerConfig = SamplerConfig()
    """How mini-batches are drawn."""
    features: FeaturesConfig = FeaturesConfig()
    """Where feature rows lie while a GPU trains."""
    trainer: TrainerConfig = TrainerConfig()
    """How the model is trained."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state of a run is saved."""
    distributed: DistributedConfig = DistributedConfig()
    """How the ranks run together."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the metrics are computed."""
    logger: LoggerConfig = LoggerConfig(jsonl=JSONLConfig())
    """Who records the epochs."""
    run: RunConfig = RunConfig()
    """Where the results go."""
    sweep: AnySweepConfig = SweepConfig()
    """What -m does; one run alone does not look at it."""

    @model_validator(mode="before")
    @classmethod
    def _labels_of_task(cls, raw: Any) -> Any:
        """`task.type=node_regression` says what the labels of a user's files are."""
        if not isinstance(raw, Mapping):
            return raw
        dataset, task = raw.get("dataset"), raw.get("task")
        kind = task.get("type") if isinstance(task, Mapping) else getattr(task, "type", None)
        if kind != "node_regression" or not isinstance(dataset, FilesConfig):
            return raw
        known = dataset.model_copy(update={"task": "regression"})
        return {**raw, "dataset": known if dataset.task == "auto" else dataset}

    def to_dict(self) -> JSON:
        """The configuration as plain data for JSON or YAML; `from_dict` gives it back exactly."""
        plain = self.model_dump(mode="json")
        plain["logger"] = {name: plain["logger"][name] for name in self.logger.chosen()}
        return plain
