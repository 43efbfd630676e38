"""The one schema: every key with its type, range, default, meaning and unit.

Each class works on its own (`TrainerConfig(epochs=3)`); `Config()` is the default run's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Predicate
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from gnntrain.config import published, types
from gnntrain.config.models import ModelConfig
from gnntrain.config.section import Section
from gnntrain.metrics import BUILT_IN_METRICS
from gnntrain.plugins import DATASETS, METRICS, SAMPLERS

SAMPLER_CLASSES = {
    "numba": "gnntrain.sampling.cpu:CPUSampler",
    "triton": "gnntrain.sampling.gpu:GPUSampler",
    "pyg": "gnntrain.sampling.pyg:PyGSampler",
}
"""Where the class of each sampler is; it is imported when it is used."""


DatasetName = Annotated[types.Text, types.one_of(lambda: published.DATASET_NAMES, DATASETS)]


class DatasetConfig(Section):
    """The keys every data set has."""

    name: DatasetName = "synthetic"
    """Name of the data set."""
    root: types.PathText | None = None
    """Folder of the raw files, read or downloaded to; null: the user's cache folder."""
    store_dir: types.PathText | None = None
    """Folder of the prepared graph stores; null: the user's cache folder."""
    to_undirected: bool = False
    """Store every edge in both directions; weights of an edge given more than once are summed."""
    add_self_loops: bool = False
    """Add an edge from every node to itself."""
    normalize_features: bool = False
    """Subtract the smallest value of all features, then divide each node's by their sum where that
    exceeds 1, as PyG's NormalizeFeatures does."""
    feature_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the stored features."""

    _target: str | None = PrivateAttr(default=None)
    _quantities: bool = PrivateAttr(default=False)

    @property
    def target(self) -> str | None:
        """The node type to learn, `task.target`; None: the only one that has labels."""
        return self._target

    @property
    def quantities(self) -> bool:
        """Whether `task.type` says that the labels of a package's data set are quantities."""
        return self._quantities

    def for_target(self, target: str | None, *, quantities: bool = False) -> Self:
        """A copy whose `target` and `quantities` these are."""
        chosen = self.model_copy()
        chosen._target, chosen._quantities = target, quantities
        return chosen

    @classmethod
    def class_for(cls, keys: Mapping[str, Any]) -> type[Section]:
        """The class of a random graph, a published data set or a user's own files, which are known
        by the name `files` or one of four keys, beside any name that is not taken."""
        if cls is not DatasetConfig:
            return cls
        name = str(keys.get("name", "synthetic"))
        if name in published.SYNTHETIC_NAMES:
            return SyntheticConfig
        if name == published.SYNTHETIC_MAG:
            return SyntheticMAGConfig
        own = {"data", "schema", "edges", "features"}
        is_own = (name == "files" or own & keys.keys()) and name not in published.PUBLISHED
        return FilesConfig if is_own else BuiltinConfig

    @property
    def option(self) -> str:
        """The option of the group `dataset` whose keys these are: `dataset=OPTION`."""
        return "files" if isinstance(self, FilesConfig) else self.name

    @classmethod
    def completed(cls, keys: types.JSON, *, saved: bool) -> types.JSON:  # noqa: ARG003
        """With the defaults of the data set of this name."""
        name = keys.get("name", cls.model_fields["name"].default)
        return {**published.DATASET_DEFAULTS.get(str(name), {}), **keys}


class _RandomConfig(DatasetConfig):
    """The keys every random graph has."""

    homophily: types.Ratio = 0.55
    """Share of edges that are drawn within a class."""
    degree_exponent: Annotated[float, Field(gt=1), types.NUMBER] = 2.5
    """Exponent of the power law of degrees. Smaller: larger hubs."""
    feature_signal: types.NonNegative = 2.0
    """Distance between the mean features of two classes, in standard deviations of the noise."""
    seed: types.Seed = 0
    """Seed of the graph; the same seed gives the same graph."""


class SyntheticConfig(_RandomConfig):
    """A random graph of communities: a degree-corrected stochastic block model."""

    name: Literal["synthetic", "synthetic_reddit", "synthetic_products"] = "synthetic"
    num_nodes: types.OneOrMore = 10_000
    """Number of nodes."""
    avg_degree: types.NonNegative = 15.0
    """Mean number of in-neighbours of a node."""
    num_edges: types.ZeroOrMore | None = None
    """Exact number of edges, each direction counted; null: follows from avg_degree."""
    num_features: types.OneOrMore = 64
    """Number of features of a node."""
    num_classes: Annotated[int, Field(ge=2)] = 8
    """Number of classes. Each class is a community."""
    isolated_fraction: types.Share = 0.01
    """Share of nodes without any edge."""
    num_train: types.ZeroOrMore | None = None
    """Number of training nodes; null: a fifth of all."""
    num_val: types.ZeroOrMore | None = None
    """Number of validation nodes; null: a fifth of all."""
    num_test: types.ZeroOrMore | None = None
    """Number of test nodes; null: all that are left."""


class SyntheticMAGConfig(_RandomConfig):
    """A random typed graph with the types and sizes of ogbn-mag, whose papers are classified."""

    name: Literal["synthetic_mag"] = "synthetic_mag"
    scale: Annotated[float, Field(gt=0, le=1), types.NUMBER] = 1.0
    """Share of ogbn-mag's nodes and edges."""
    num_features: types.OneOrMore = 128
    """Number of features of a paper; the other types have none."""
    num_classes: Annotated[int, Field(ge=2)] = 349
    """Number of classes. The nodes of every type are shared out among them."""

    @property
    def num_nodes(self) -> dict[str, int]:
        """Number of nodes of each type."""
        sizes = published.MAG_NODES.items()
        return {name: max(1, round(size * self.scale)) for name, size in sizes}

    @property
    def num_edges(self) -> dict[tuple[str, str, str], int]:
        """Number of edges of each type, without the reverse ones: at most half of all pairs."""
        sizes, edges = self.num_nodes, dict[tuple[str, str, str], int]()
        for (source, name, target), number in published.MAG_EDGES.items():
            most = sizes[source] * (sizes[target] - (source == target)) // 2
            edges[source, name, target] = min(round(number * self.scale), most)
        return edges


class BuiltinConfig(DatasetConfig):
    """A published data set, through the classes of PyG and OGB, or an installed package's."""

    name: DatasetName = "cora"
    split: types.ZeroOrMore = 0
    """Number of the train/val/test split, for data sets with several."""


class FilesConfig(DatasetConfig):
    """A user's own graph, read from CSV, Parquet, npy, npz or pt files."""

    name: Annotated[
        types.Text,
        # It may not be taken for another one, nor break a line.
        Predicate(lambda name: name == "files" or name not in published.DATASET_NAMES),
        Predicate(str.isprintable),
        types.described("a name in one line that no data set of gnntrain has"),
    ] = "files"
    """What the data set is called on the console, in folder names and in reports."""
    data: types.FileText | None = None
    """One file with a whole graph, such as a saved PyG Data, in place of edges and features."""
    schema: types.FileText | None = None  # type: ignore[assignment]
    """YAML file that names the files of a typed graph, in place of edges and features."""
    edges: types.FileText | None = None
    """Table of edges: a row has the source node, the target node and perhaps a weight."""
    features: types.FileText | None = None
    """Table of nodes: a row has a node's features, and perhaps its id, label and split."""
    labels: types.FileText | None = None
    """Table of labels; null: they are a column of the features table."""
    split: types.ZeroOrMore | types.FileText | None = None
    """File that says train, val or test for each node; or K: column K of the masks, or the K-th
    random split. null: a column of the other tables says it, else a split is drawn."""
    split_ratio: types.Ratios = (0.6, 0.2, 0.2)
    """Shares of train, val and test where the split is drawn."""
    split_seed: types.Seed = 0
    """Seed of the drawn splits."""
    stratify: bool = False
    """Draw within each class (of a quantity: each tenth), so that all splits have the same mix."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first line of a CSV file names the columns; auto: look."""
    source_column: types.Text | None = None
    """Column of an edge's source node, by name or number; null: recognised by its name, else the
    first of two."""
    target_column: types.Text | None = None
    """Column of an edge's target node; null: recognised by its name, else the second of two."""
    weight_column: types.Text | None = None
    """Column of an edge's weight; null: edges have no weight."""
    id_column: types.Text | None = None
    """Column of the node id; null: recognised by its name; none: row 0 is node 0, and so on."""
    label_column: types.Names | None = None
    """Column of the label, or a list: several labels a node; null: recognised by its name."""
    split_column: types.Text | None = None
    """Column that says train, val or test; null: recognised by its name."""
    feature_columns: types.Names | None = None
    """Columns of features, by name or pattern; null: all columns without another use."""
    ignore: types.Names = ()
    """Columns to leave out, by name or pattern."""
    categorical: types.Names = ()
    """Columns of categories, by name or pattern: each category becomes a feature of 0 and 1."""
    missing: types.Missing = "refuse"
    """A missing feature: refuse lists the rows and stops; mean takes the training nodes' mean; zero
    takes 0; indicator takes the mean and adds a feature that is 1 where one was missing."""
    standardize: bool = False
    """Scale columns of numbers to mean 0 and standard deviation 1 over the training nodes."""
    decimal: Literal[".", ","] = "."
    """Decimal mark in text files."""
    encoding: types.Text = "auto"
    """Encoding of text files; auto: recognise UTF-8, UTF-16 and Latin-1."""
    task: Literal["auto", "multiclass", "binary", "multilabel", "regression"] = "auto"
    """What the labels are; auto: look at them."""
    metric: Annotated[str, types.one_of(lambda: ("auto", *BUILT_IN_METRICS), METRICS)] = "auto"
    """Metric that chooses the best epoch; auto: the usual one of the task."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do about a row that cannot be read. error: stop and list it; skip: leave it out."""


class TaskConfig(Section):
    """What is learnt."""

    type: Literal["node_classification", "node_regression"] = "node_classification"
    """What is learnt: classes of nodes, or quantities of nodes."""
    target: types.Text | None = None
    """Node type whose labels are learnt; null: the one that has labels."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a regression: squared error, or Huber's, which outliers sway less."""
    huber_delta: types.Positive = 1.0
    """Error, in standard deviations of the target, from which Huber's loss grows linearly."""
    positive_class: types.Text | None = None
    """The class of two that precision, recall, F1 and average precision are of, as the labels call
    it; null: the one that sorts last."""
    top_k: types.OneOrMore = 100
    """Two classes: number of nodes of the highest scores that precision@k and recall@k are of."""


class SamplerConfig(Section):
    """How mini-batches are drawn."""

    name: Literal["neighbor", "full"] = "neighbor"
    """Neighbour-sampled mini-batches, or the full graph in one step an epoch."""
    fan_outs: types.TypedFanOuts = (10, 10)
    """In-neighbours to draw for a node, one number a layer, the hop next to the seeds first. Of a
    typed graph: for each edge type into the node, or by edge type."""
    fan_out_scope: Literal["relation", "node"] = "relation"
    """Typed graphs: a fan-out is for each edge type (relation), or all of them together (node)."""
    replace: bool = False
    """Draw with replacement."""
    backend: Annotated[str, types.one_of(lambda: ("auto", *SAMPLER_CLASSES), SAMPLERS)] = "auto"
    """Who draws: numba (CPU), triton (GPU) or pyg (PyG's loader); auto: triton where a GPU can read
    the edges, else numba."""
    threads: types.ZeroOrMore | None = None
    """Background threads of each rank that make batches; null: one, if there is a core for it."""
    prefetch: types.OneOrMore = 1
    """Batches that each rank makes ahead."""
    topology: Literal["auto", "resident", "pinned", "host"] = "auto"
    """Where the edges lie: in GPU memory (resident), in host memory that the GPU reads (pinned), or
    in the store, and the CPU draws (host); auto: the first of these with room."""


class FeaturesConfig(Section):
    """Where the feature rows lie while a GPU trains. A CPU reads them from the store."""

    placement: Literal[
        "auto", "resident", "sharded", "cached", "pinned", "memmap", "wholegraph"
    ] = "auto"
    """Where the rows lie: in GPU memory (resident), a part on each GPU (sharded), those that are
    read most in GPU memory (cached), in host memory that GPUs read (pinned), in the store (memmap),
    or a part on each GPU of all machines (wholegraph); auto: the fastest of the others with
    room."""
    cache_ratio: types.Ratio | None = None
    """Share of the nodes whose rows each GPU caches, or each machine where rows lie on others;
    null: as cache_bytes says, else as many as fit (of rows on other machines a tenth)."""
    cache_bytes: types.ZeroOrMore | None = None
    """Bytes of memory for cached rows, in place of cache_ratio."""
    presample_epochs: types.OneOrMore = 2
    """Epochs that are sampled in advance to find the rows that are read most, which are cached;
    where rows lie on other machines, training's first ones."""


class ComputeConfig(Section):
    """Who computes the operators that torch lacks: sums over in-edges, attention, the sampler."""

    kernels: Literal["auto", "triton", "torch"] = "auto"
    """On a GPU: Triton's kernels that pass the self-check (auto), all of them or no run (triton),
    or torch's operators (torch), which any device has."""


class TrainerConfig(Section):
    """How the model is trained."""

    epochs: types.OneOrMore = 20
    """Passes over the training nodes; patience and max_steps may end the run earlier."""
    batch_size: types.OneOrMore = 1024
    """Seed nodes of a batch, on each rank."""
    lr: types.Positive = 0.01
    """Learning rate."""
    weight_decay: types.NonNegative = 0.0
    """Weight decay: an L2 penalty with adam and sgd, decoupled with adamw."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimiser."""
    momentum: types.Share = 0.9
    """Momentum of sgd."""
    scheduler: Literal["none", "cosine", "linear", "step", "plateau"] = "none"
    """How the learning rate falls: to 0 at the end (cosine, linear), every scheduler_step epochs
    (step), or after as many evaluations without a better validation metric (plateau)."""
    scheduler_step: types.OneOrMore = 10
    """Epochs of step, evaluations of plateau."""
    scheduler_gamma: Annotated[float, Field(gt=0, le=1), types.NUMBER] = 0.5
    """Factor of step and plateau."""
    warmup_epochs: types.ZeroOrMore = 0
    """Epochs in which the learning rate rises from 0 to lr."""
    clip_norm: types.Positive | None = None
    """Largest norm of the gradient: a longer one is scaled down; null: no limit."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the model; fp16 needs a GPU."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """Products of float32 matrices on a GPU: exact, or (high) by tensor cores, which read TF32."""
    compile: bool = False
    """Compile the model with torch.compile."""
    cuda_graph: Literal["auto"] | bool = "auto"
    """Record a step once as a CUDA graph, from the sampler to the optimiser, and replay it; auto:
    where one GPU draws and reads all that a step needs."""
    patience: types.ZeroOrMore = 0
    """Evaluations without a better validation metric after which training stops; 0: never."""
    eval_every: types.OneOrMore = 1
    """Epochs between two evaluations. The last epoch is always evaluated."""
    max_steps: types.OneOrMore | None = None
    """Most steps of the run; null: no limit."""
    seed: types.Seed = 0
    """Seed of weights, batches and dropout."""
    label_smoothing: types.Share = 0.0
    """Share of each target that is spread over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weight of a node in the loss. none: all equal; balanced: the rarer its class, the larger."""
    init_from: types.Text | None = None
    """Run (folder or name) whose best weights training begins with; null: random weights."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is not full."""
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device: the CPU, a GPU of NVIDIA or AMD (cuda), Apple or Intel; auto: a GPU, else the CPU."""
    gpus: Literal["auto"] | types.ZeroOrMore = "auto"
    """GPUs of this machine, one rank each; 0: the CPU; auto: all there are, else the CPU."""
    log_every: types.OneOrMore = 10
    """Steps between two progress lines."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """If loss or gradient are not finite: stop the run, or skip the step."""
    max_restarts: types.ZeroOrMore = 0
    """How often a run starts again from its last checkpoint after a failure that another try may
    mend; not used where a launcher starts the ranks."""


class CheckpointConfig(Section):
    """When the state of a run is saved within an epoch. After each epoch it is saved anyway."""

    every_steps: types.OneOrMore | None = None
    """Steps between two checkpoints; null: do not count steps."""
    every_minutes: types.Positive | None = 10.0
    """Minutes between two checkpoints; null: do not look at the clock."""


class DistributedConfig(Section):
    """How the ranks run together."""

    num_processes: types.OneOrMore = 1
    """Number of ranks on the CPU of each machine; not used where a launcher starts the ranks, nor
    on GPUs (trainer.gpus)."""
    threads: types.OneOrMore | None = None
    """CPU threads of each rank; null: an equal share of the cores."""
    timeout: types.Positive = 600.0
    """Seconds that a rank waits for the others before the run fails and names the missing ones."""
    grace: types.Positive = 30.0
    """Seconds that a run has after SIGTERM to end its step and save, before the system kills it; a
    SLURM job takes SLURM's own."""
    graph: Literal["replicated", "sharded", "partitioned"] = "replicated"
    """Over several machines: the whole graph on each (replicated), edges on each and feature rows
    in parts (sharded), or both in parts (partitioned)."""
    parts: types.PathText | None = None
    """partitioned: the folder that `gnntrain partition` has written."""
    servers: types.ZeroOrMore = 0
    """Ranks that only hold the graph and draw for the others that train; they are the last ones."""


class EvaluationConfig(Section):
    """How the metrics are computed."""

    name: Literal["layerwise", "sampled"] = "layerwise"
    """Exact metrics, layer by layer with all neighbours; or estimates, from sampled neighbours."""
    ranks: Annotated[Literal["all", "0"], BeforeValidator(str)] = "all"
    """Ranks that take part: all, or 0 for rank 0 alone."""
    memory_limit: types.Positive | None = None
    """layerwise: GiB of memory for a layer's outputs, beyond which they go to disk, and for a pass
    of a plain PyG model; null: a quarter of memory."""
    batch_size: types.OneOrMore = 4096
    """Nodes a batch, on each rank: sampled, or of a plain PyG model beyond `memory_limit`."""
    fan_outs: types.TypedFanOuts | None = None
    """sampled: in-neighbours to draw for a node, one number a layer; null: those of the sampler."""
    max_steps: types.OneOrMore | None = None
    """sampled: most batches a split, over all ranks; null: all nodes."""


class LoggerConfig(Section):
    """Who records the epochs. A logger is chosen by its options, perhaps none: `{}`."""

    jsonl: types.NoOptions | None = None
    """One line of JSON an epoch: metrics.jsonl in the run directory."""
    csv: types.NoOptions | None = None
    """One row an epoch: metrics.csv in the run directory."""
    tensorboard: types.NoOptions | None = None
    """TensorBoard event files: tensorboard/ in the run directory."""
    wandb: types.JSON | None = None
    """Weights & Biases. Options are arguments of wandb.init: project, entity, mode, and others."""
    mlflow: types.JSON | None = None
    """MLflow. Options: experiment; tracking_uri (else MLFLOW_TRACKING_URI); arguments of
    mlflow.start_run."""

    def chosen(self) -> dict[str, types.JSON]:
        """The chosen loggers' options, by name."""
        return {name: options for name, options in self if options is not None}


class SweepConfig(Section):
    """What -m does; one run alone does not look at it."""

    name: Literal["basic", "optuna"] = "basic"
    """All combinations of the values, or a search by Optuna (Akiba et al., 2019) for the best
    validation metric."""
    jobs: Literal["auto"] | types.OneOrMore = "auto"
    """Trials to train at the same time; auto: one a GPU, and on the CPU one after another."""
    trials: types.OneOrMore = 20
    """optuna: number of trials."""
    sampler: Literal["tpe", "random"] = "tpe"
    """optuna: what draws the values; tpe (Bergstra et al., 2011) learns from the trials so far."""
    pruner: Literal["median", "none"] = "median"
    """optuna: median ends a trial early whose best validation metric is below the median of the
    others."""
    seed: types.Seed = 0
    """optuna: seed of the drawn values; with one trial at a time the same seed gives the same
    search."""


class RunConfig(Section):
    """Where the results go."""

    dir: types.PathText | None = None
    """The run directory; null: runs/<name>."""
    name: types.FolderName | None = None
    """Name of the run; null: made of the data set, the model and the time."""
    if_exists: Literal["auto", "error", "resume"] = "auto"
    """If the run is there: error, or resume (a completed one is left as it is); auto: resume under
    a launcher and in Kubernetes, else error."""


class Config(Section):
    """Everything a run is asked for."""

    dataset: DatasetConfig = Field(default_factory=SyntheticConfig)
    """The graph."""
    task: TaskConfig = Field(default_factory=TaskConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    sampler: SamplerConfig = Field(default_factory=SamplerConfig)
    features: FeaturesConfig = Field(default_factory=FeaturesConfig)
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    distributed: DistributedConfig = Field(default_factory=DistributedConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    logger: LoggerConfig = Field(default_factory=lambda: LoggerConfig(jsonl={}))
    run: RunConfig = Field(default_factory=RunConfig)
    sweep: SweepConfig = Field(default_factory=SweepConfig)

    named: ClassVar = ("dataset", "model")

    @model_validator(mode="after")
    def _labels_of_task(self) -> Self:
        """`task.type=node_regression` says what the labels of a user's own data are, and
        `task.target` whose labels they are."""
        is_regression = self.task.type == "node_regression"
        quantities = is_regression and isinstance(self.dataset, BuiltinConfig)  # a package's
        data = self.dataset.for_target(self.task.target, quantities=quantities)
        if is_regression and isinstance(data, FilesConfig) and data.task == "auto":
            data = data.model_copy(update={"task": "regression"})
        return self if data == self.dataset else self.model_copy(update={"dataset": data})

    def to_dict(self) -> types.JSON:
        """The configuration as plain data for JSON or YAML; `from_dict` gives it back exactly."""
        plain = self.model_dump(mode="json", serialize_as_any=True)
        plain["logger"] = {name: plain["logger"][name] for name in self.logger.chosen()}
        return plain
