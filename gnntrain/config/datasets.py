"""The keys of `dataset=NAME`: of a random graph, a published data set, or a user's own files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    WrapValidator,
    model_validator,
)

from gnntrain.config.published import (
    BUILTIN_NAMES,
    DATASET_DEFAULTS,
    DATASET_NAMES,
    MAG_EDGES,
    MAG_NODES,
    SYNTHETIC_MAG,
    SYNTHETIC_NAMES,
)
from gnntrain.config.types import (
    NUMBER,
    Names,
    NonNegative,
    OneOf,
    OneOrMore,
    PathText,
    Ratio,
    Ratios,
    Section,
    Seed,
    Share,
    Text,
    Variants,
    ZeroOrMore,
    described,
    name_in,
)
from gnntrain.metrics import BUILT_IN_METRICS
from gnntrain.plugins import DATASETS, METRICS, plugin_names


class DatasetConfig(Section):
    """The keys every data set has."""

    name: Text = "synthetic"
    """Name of the data set."""
    root: PathText | None = None
    """Folder of the raw files, read or downloaded to; null: the user's cache folder."""
    store_dir: PathText | None = None
    """Folder of the prepared graph stores; null: the user's cache folder."""
    to_undirected: bool = False
    """Store every edge in both directions; the weights of an edge given in both, or more than once,
    are added up."""
    add_self_loops: bool = False
    """Add an edge from every node to itself."""
    normalize_features: bool = False
    """Subtract the smallest value of all features (of a node type), then divide each node's by
    their sum where that exceeds 1, as PyG's NormalizeFeatures does."""
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

    def for_target(self, target: str | None, *, quantities: bool | None = None) -> Self:
        """A copy whose node type to learn is `target`.

        Args:
            target: See `target`.
            quantities: See `quantities`; None: as here.
        """
        chosen = self.model_copy()
        chosen._target = target
        if quantities is not None:
            chosen._quantities = quantities
        return chosen

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
    """Number of nodes."""
    avg_degree: NonNegative = 15.0
    """Mean number of in-neighbours of a node."""
    num_edges: ZeroOrMore | None = None
    """Exact number of edges, each direction counted; null: follows from avg_degree."""
    num_features: OneOrMore = 64
    """Number of features of a node."""
    num_classes: Annotated[int, Field(ge=2)] = 8
    """Number of classes. Each class is a community."""
    homophily: Ratio = 0.55
    """Share of edges that join two nodes of the same class."""
    degree_exponent: Annotated[float, Field(gt=1), NUMBER] = 2.5
    """Exponent of the power law of degrees. Smaller: larger hubs."""
    isolated_fraction: Share = 0.01
    """Share of nodes without any edge."""
    feature_signal: NonNegative = 2.0
    """Distance between the mean features of two classes, in standard deviations of the noise."""
    num_train: ZeroOrMore | None = None
    """Number of training nodes; null: a fifth of all."""
    num_val: ZeroOrMore | None = None
    """Number of validation nodes; null: a fifth of all."""
    num_test: ZeroOrMore | None = None
    """Number of test nodes; null: all that are left."""
    seed: Seed = 0
    """Seed of the graph; the same seed gives the same graph."""


class SyntheticMAGConfig(DatasetConfig):
    """A random typed graph with the types and sizes of ogbn-mag: papers to classify, their authors,
    institutions and fields of study."""

    name: Literal["synthetic_mag"] = "synthetic_mag"
    """Name of the data set."""
    scale: Annotated[float, Field(gt=0, le=1), NUMBER] = 1.0
    """Share of ogbn-mag's nodes and edges."""
    num_features: OneOrMore = 128
    """Number of features of a paper; the other types have none."""
    num_classes: Annotated[int, Field(ge=2)] = 349
    """Number of classes. The nodes of every type are shared out among them."""
    homophily: Ratio = 0.55
    """Share of edges that are drawn within a class."""
    degree_exponent: Annotated[float, Field(gt=1), NUMBER] = 2.5
    """Exponent of the power law of degrees. Smaller: larger hubs."""
    feature_signal: NonNegative = 2.0
    """Distance between the mean features of two classes, in standard deviations of the noise."""
    seed: Seed = 0
    """Seed of the graph; the same seed gives the same graph."""

    @property
    def num_nodes(self) -> dict[str, int]:
        """Number of nodes of each type."""
        return {name: max(1, round(size * self.scale)) for name, size in MAG_NODES.items()}

    @property
    def num_edges(self) -> dict[tuple[str, str, str], int]:
        """Number of edges of each type, without the reverse ones: at most half of all pairs."""
        sizes = self.num_nodes
        return {
            (source, name, destination): min(
                round(number * self.scale),
                sizes[source] * (sizes[destination] - (source == destination)) // 2,
            )
            for (source, name, destination), number in MAG_EDGES.items()
        }


class BuiltinConfig(DatasetConfig):
    """A published data set, through the classes of PyG and OGB, or an installed package's."""

    name: Annotated[str, OneOf(lambda: BUILTIN_NAMES, DATASETS)] = "cora"
    """Name of the data set."""
    split: ZeroOrMore = 0
    """Number of the train/val/test split, for data sets with several."""


def _own_name(name: str) -> str:
    """A user's own data set may not be taken for another one, nor break a line."""
    if name in (*SYNTHETIC_NAMES, SYNTHETIC_MAG, *BUILTIN_NAMES) or not name.isprintable():
        raise ValueError(name)
    return name


class FilesConfig(DatasetConfig):
    """A user's own graph, read from CSV, Parquet, npy, npz or pt files."""

    name: Annotated[
        Text,
        AfterValidator(_own_name),
        described("a name in one line that no data set of gnntrain has"),
    ] = "files"
    """What the data set is called on the console, in folder names and in reports."""
    data: PathText | None = None
    """One file with a whole graph, such as a saved PyG Data, in place of edges and features."""
    schema: PathText | None = None  # type: ignore[assignment]
    """YAML file that says which files hold the node types and edge types of a typed graph, in place
    of edges and features."""
    edges: PathText | None = None
    """Table of edges: a row has the source node, the target node and perhaps a weight."""
    features: PathText | None = None
    """Table of nodes: a row has a node's features, and perhaps its id, label and split."""
    labels: PathText | None = None
    """Table of labels; null: they are a column of the features table."""
    split: ZeroOrMore | PathText | None = None
    """File that says train, val or test for each node. A number K: draw the K-th random split, or
    take column K of the masks. null: a column of the other tables says it, else a split is
    drawn."""
    split_ratio: Ratios = (0.6, 0.2, 0.2)
    """Shares of train, val and test where the split is drawn."""
    split_seed: Seed = 0
    """Seed of the drawn splits."""
    stratify: bool = False
    """Draw within each class (of a quantity: within each tenth), so that train, val and test have
    the same mix."""
    header: Literal["auto"] | bool = "auto"
    """Whether the first line of a CSV file names the columns; auto: look."""
    source_column: Text | None = None
    """Column of an edge's source node, by name or number (from 0); null: recognised by its name,
    else the first of two columns."""
    target_column: Text | None = None
    """Column of an edge's target node; null: recognised by its name, else the second of two."""
    weight_column: Text | None = None
    """Column of an edge's weight; null: edges have no weight."""
    id_column: Text | None = None
    """Column of the node id; null: recognised by its name; none: row 0 is node 0, and so on."""
    label_column: Names | None = None
    """Column of the label, or a list: several labels a node; null: recognised by its name."""
    split_column: Text | None = None
    """Column that says train, val or test; null: recognised by its name."""
    feature_columns: Names | None = None
    """Columns of features, by name or pattern; null: all columns without another use."""
    ignore: Names = ()
    """Columns to leave out, by name or pattern."""
    categorical: Names = ()
    """Columns of categories, by name or pattern: each category becomes a feature of 0 and 1."""
    missing: Literal["refuse", "mean", "zero", "indicator"] = "refuse"
    """What to do about a missing feature. refuse: stop and list the rows; mean: take the training
    nodes' mean; zero: take 0; indicator: take the mean and add a feature that is 1 where it was
    missing."""
    standardize: bool = False
    """Scale each column of numbers to mean 0 and standard deviation 1 over the training nodes; the
    0 and 1 of categories and indicators stay."""
    decimal: Literal[".", ","] = "."
    """Decimal mark in text files."""
    encoding: Text = "auto"
    """Encoding of text files; auto: recognise UTF-8, UTF-16 and Latin-1."""
    task: Literal["auto", "multiclass", "binary", "multilabel", "regression"] = "auto"
    """What the labels are; auto: look at them."""
    metric: Annotated[str, OneOf(lambda: ("auto", *BUILT_IN_METRICS), METRICS)] = "auto"
    """Metric that chooses the best epoch; auto: the usual one of the task."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do about a row that cannot be read. error: stop and list it; skip: leave it out."""

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
            for key in ("data", "schema", "edges", "features", "labels", "split")
            if isinstance(given := raw.get(key), str) and given and not given.startswith("~")
        }
        return {**raw, **files}


# A data set with one of these keys is a user's own, which may have any name that is not taken.
_FILES_KEYS = frozenset({"data", "schema", "edges", "features"})


def _choose_dataset(keys: object) -> type[DatasetConfig]:
    name = name_in(keys, "synthetic")
    if name in SYNTHETIC_NAMES:
        return SyntheticConfig
    if name == SYNTHETIC_MAG:
        return SyntheticMAGConfig
    is_own = name == "files" or (isinstance(keys, Mapping) and _FILES_KEYS & keys.keys())
    return FilesConfig if is_own and name not in BUILTIN_NAMES else BuiltinConfig


DATASET_VARIANTS = Variants(lambda: (*DATASET_NAMES, *plugin_names(DATASETS)), _choose_dataset)

AnyDatasetConfig = Annotated[SerializeAsAny[DatasetConfig], WrapValidator(DATASET_VARIANTS.read)]
