"""A run's graph store: opened or built when the run begins, and opened again unchanged later."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from gnntrain.config import DatasetConfig, FilesConfig, SyntheticConfig
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_folder import StoreError
from gnntrain.data.build import OpenedStore, open_or_build, store_name
from gnntrain.data.datasets import builder_for, object_builder
from gnntrain.data.feature_statistics import FeatureStatistics
from gnntrain.data.graph import NODE, Graph, GraphSchema, Nodes, NodeType, PrepareOptions
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.store import StoredGraph
from gnntrain.data.stores import stores_folder
from gnntrain.data.summary import first_names
from gnntrain.data.targets import TargetScale
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind
from gnntrain.reporting.rundir import RunDirectory, StoreRecord

OBJECT = "data"
"""Name of a graph that was given as an object, where it has no other."""

_GRAPH_FILES = ("data", "schema", "edges", "features")
_OWN_FILES = (*_GRAPH_FILES, "labels")


@dataclass(frozen=True)
class ModelSignature:
    """Inputs and outputs of a model that was trained on a graph.

    Attributes:
        dataset: Name of the graph's data set.
        task: Kind of labels.
        metric: Name of the deciding metric.
        num_features: Features a node, of the target type.
        num_classes: Number of classes; of targets.
        class_names: The classes (targets) as the user's labels call them; None: 0, 1, ….
        has_edge_weight: Whether edges have weights.
        preprocessing: The preprocessing of a user's columns, if any.
        target_scale: The scale of a regression's targets; None for classes.
        schema: The types of the graph; None where a run is older than this.
        preprocessing_by_type: As `preprocessing`, of a typed graph.
        id_digests: Digests of the user's ids of the nodes without features: a model of typed graphs
            has learnt a row for each.
        statistics: Of the features, by node type; none where a run is older than this, or its
            graph was in parts.
        lowest: What `dataset.normalize_features` subtracted, by node type; None: it was not set, or
            the run is older than this.
    """

    dataset: str
    task: LabelKind
    metric: str
    num_features: Annotated[int, Field(ge=0)]
    num_classes: Annotated[int, Field(ge=1)]
    class_names: list[str] | list[int] | None = None
    has_edge_weight: bool = False
    preprocessing: Preprocessing | None = None
    target_scale: TargetScale | None = None
    schema: GraphSchema | None = None
    preprocessing_by_type: dict[NodeType, Preprocessing] | None = None
    id_digests: dict[NodeType, str] = field(default_factory=dict)
    statistics: dict[NodeType, FeatureStatistics] = field(default_factory=dict)
    lowest: dict[NodeType, float] | None = None

    @classmethod
    def of(cls, store: StoredGraph | PartitionedGraph) -> ModelSignature:
        """The signature of a model that is trained on `store`."""
        schema, made_by = store.schema, store.meta.preprocessing
        is_homogeneous = store.meta.is_homogeneous
        return cls(
            store.dataset,
            store.task,
            store.metric,
            schema.num_features[schema.target],
            store.num_classes,
            store.class_names,
            any(edges.weight is not None for edges in store.edges.values()),
            made_by.get(NODE) if is_homogeneous else None,
            store.target_scale() if store.task == "continuous" else None,
            schema,
            None if is_homogeneous else made_by,
            {
                name: digest
                for name, nodes in store.nodes.items()
                if nodes.num_features == 0 and (digest := _id_digest(nodes)) is not None
            },
            lowest=store.meta.lowest,
        )

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain data."""
        plain: dict[str, Any] = TypeAdapter(ModelSignature).dump_python(self, mode="json")
        return plain

    def made_by(self, node_type: NodeType) -> Preprocessing | None:
        """The preprocessing of the features of one type."""
        if self.preprocessing_by_type is not None:
            return self.preprocessing_by_type.get(node_type)
        return self.preprocessing

    @property
    def inputs(self) -> int | GraphSchema:
        """The inputs, for `build_model`."""
        return self.schema or self.num_features

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer, see `Graph.num_outputs`."""
        return 1 if self.task == "binary" else self.num_classes


def refuse_other_types(
    signature: ModelSignature, graph: Graph, *, subject: str, exactly: bool = False
) -> GraphSchema:
    """Refuse a graph that lacks a type of the one that a model was trained on.

    Args:
        signature: The model's.
        graph: Another graph.
        subject: The model, at the beginning of messages.
        exactly: Refuse further types, too.

    Returns:
        The types of the graph that the model was trained on.

    Raises:
        UserError: See above.
    """
    here = graph.schema
    there = signature.schema
    if there is None:  # a run of before there were types
        there = replace(here, num_features={NODE: signature.num_features})
    before, after = (["/".join(edge) for edge in schema.edge_types] for schema in (there, here))
    _refuse_types(subject, graph, "node type", there.node_types, here.node_types, exactly)
    _refuse_types(subject, graph, "edge type", before, after, exactly)
    return there


def refuse_other_nodes(
    signature: ModelSignature,
    there: GraphSchema,
    graph: Graph,
    name: NodeType,
    *,
    subject: str,
    learns_rows: bool,
) -> None:
    """Refuse a graph whose nodes of one type have other features than a model was trained on, or
    are others, where the model has learnt their rows (`learns_rows`)."""
    here = graph.schema
    wanted, given = there.num_features[name], here.num_features[name]
    of_type = f" of type {name}" if graph.is_hetero else ""
    if given != wanted:
        raise UserError(
            f"{subject} takes {wanted} features a node{of_type}; the graph {graph.dataset} has "
            f"{given}.",
            "Give the features it was trained on, in the same order.",
        )
    if learns_rows and wanted == 0 and nodes_differ(signature, graph, name):
        raise UserError(
            f"{subject} has learnt a row for each of the {there.num_nodes[name]:,} nodes"
            f"{of_type} that it was trained on, which have no features; the "
            f"{here.num_nodes[name]:,} of the graph {graph.dataset} are others.",
            "Give these nodes features, and train on them.",
        )


def _refuse_types(
    subject: str,
    graph: Graph,
    kind: str,
    wanted: Sequence[str],
    given: Sequence[str],
    exactly: bool,
) -> None:
    for name in wanted:
        if name not in given:
            guess = did_you_mean(name, given)
            told = f"It has the {kind}s {', '.join(given)}."
            raise UserError(
                f"{subject} was trained with the {kind} {name}, which the graph {graph.dataset} "
                "lacks.",
                told if guess is None else f"{guess[0].upper()}{guess[1:]} {told}",
            )
    for name in given if exactly else ():
        if name not in wanted:
            raise UserError(
                f"{subject} was trained without the {kind} {name} of the graph {graph.dataset}.",
                f"It was trained with the {kind}s {', '.join(wanted)}.",
            )


def nodes_differ(signature: ModelSignature, graph: Graph, name: NodeType) -> bool:
    """Whether a type has other nodes than the graph that a model was trained on."""
    assert signature.schema is not None
    same_size = len(graph.nodes[name]) == signature.schema.num_nodes[name]
    return not same_size or signature.id_digests.get(name) != _id_digest(graph.nodes[name])


def _id_digest(nodes: Nodes) -> str | None:
    """A digest of the user's ids; None: nodes are called by their numbers."""
    return None if nodes.ids is None else blake2b(np.ascontiguousarray(nodes.ids).data).hexdigest()


def model_signature(run: RunDirectory, dataset: DatasetConfig) -> ModelSignature:
    """The signature of a run's model; opens the run's graph only if the run did not record it.

    Raises:
        UserError: The run did not record it, and its graph is missing.
    """
    record = run.store_record()
    if record is None or record.learnt is None:  # from before this was recorded
        return ModelSignature.of(open_run_store(run, dataset).store)
    try:
        # As JSON: of Python's objects, strictness takes none but a `ModelSignature`.
        signature = TypeAdapter(ModelSignature).validate_json(
            json.dumps(record.learnt), strict=True
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{run.path / 'store.json'} cannot be read: learnt.{where}: {first['msg']}"
        ) from error
    return signature


def spread_warnings(signature: ModelSignature, dataset: DatasetConfig) -> Iterator[str]:
    """A warning of features whose spread is far from the others', where it can be mended."""
    if getattr(dataset, "standardize", True):
        return
    apart = [
        name if node_type == NODE else f"{node_type}.{name}"
        for node_type, statistics in signature.statistics.items()
        for name in statistics.apart(signature.made_by(node_type))
    ]
    if apart:
        yield (
            f"The spread of {first_names(apart)} is far from the other features': those of small "
            "spread count for little at first. Set dataset.standardize=true."
        )


def prepare_store(
    dataset: DatasetConfig,
    *,
    labelled: bool = True,
    preprocessing: Preprocessing | Mapping[NodeType, Preprocessing] | None = None,
    lowest: Mapping[NodeType, float] | None = None,
    data: object = None,
) -> OpenedStore:
    """Open the data set's graph store; build it first if necessary.

    Args:
        dataset: The data set.
        labelled: Whether a user's own files must have labels and splits.
        preprocessing: The preprocessing of a user's own files, of a typed graph by node type;
            None: fitted to them.
        lowest: What `dataset.normalize_features` subtracts, by node type; None: the smallest value
            of this graph.
        data: The graph as an object, see `gnntrain.run.train`; None: the graph of `dataset`.
    """
    if data is None:
        builder = builder_for(dataset, labelled=labelled, preprocessing=preprocessing)
    else:
        own = object_dataset(dataset).for_target(dataset.target)
        preprocessing = None if isinstance(preprocessing, Mapping) else preprocessing
        builder = object_builder(data, own, labelled=labelled, preprocessing=preprocessing)
    options = prepare_options(dataset)
    if options.normalize_features:
        options = replace(options, lowest=lowest)
    return open_or_build(stores_folder(dataset), builder.identity, options, builder.build)


def object_dataset(dataset: DatasetConfig) -> FilesConfig:
    """The configuration of a graph given as an object.

    Raises:
        UserError: `dataset` is another graph: one of files, or a published one.
    """
    if isinstance(dataset, FilesConfig):
        given = [key for key in _OWN_FILES if getattr(dataset, key)]
        if given:
            raise UserError(
                f"data is given, and so is dataset.{given[0]}: these are two graphs.",
                "Leave one of them out.",
            )
        is_named = dataset.name != FilesConfig().name
        return dataset if is_named else dataset.model_copy(update={"name": OBJECT})
    if dataset.for_target(None) != SyntheticConfig():
        raise UserError(
            f"data is given, and so is the data set {dataset.name}: these are two graphs.",
            "Leave one of them out; keys for data go into FilesConfig(…).",
        )
    return FilesConfig(name=OBJECT)


def prepared_alike(dataset: DatasetConfig) -> FilesConfig:
    """The configuration of another graph, given as an object, with the preparation of `dataset`."""
    keys = set(DatasetConfig.model_fields) - {"name", "root"}
    keys |= {"weight_column"} if is_object(dataset) else set()
    return FilesConfig(name=OBJECT, **{key: getattr(dataset, key) for key in keys})


def prepare_options(dataset: DatasetConfig) -> PrepareOptions:
    """How the data set's graph is prepared."""
    names = [field.name for field in fields(PrepareOptions) if field.name != "lowest"]
    return PrepareOptions(**{name: getattr(dataset, name) for name in names})


def store_folder(dataset: DatasetConfig) -> Path:
    """The folder of the data set's own store, which need not exist yet."""
    identity = builder_for(dataset).identity()
    return stores_folder(dataset).absolute() / store_name(identity, prepare_options(dataset))


def has_changed(run: RunDirectory, dataset: DatasetConfig) -> bool:
    """Whether the data set has another store today than the one that the run was trained on."""
    record = run.store_record()
    return record is not None and Path(record.path).name != store_folder(dataset).name


def record_of(graph: StoredGraph | PartitionedGraph) -> StoreRecord:
    """The record of a graph in a run directory: path, digest and model signature.

    In parts or whole, a graph has the same digest.
    """
    signature = ModelSignature.of(graph)
    if isinstance(graph, StoredGraph):  # parts have no rows here
        statistics = {
            name: FeatureStatistics.of(nodes, signature.made_by(name))
            for name, nodes in graph.nodes.items()
            if nodes.num_features
        }
        signature = replace(signature, statistics=statistics)
    return StoreRecord(str(graph.path), graph.content_digest, signature.to_dict())


def open_run_store(
    run: RunDirectory, dataset: DatasetConfig, *, data: object = None
) -> OpenedStore:
    """The graph that the run was trained on, byte for byte.

    If the recorded store is missing or holds another graph, it is built again from the
    configuration and compared.

    Raises:
        UserError: The store is missing, and the data set is another graph now, or none.
    """
    begin = time.perf_counter()
    record = run.store_record()
    if record is None:  # from before stores were recorded, or the run was killed before
        return prepare_store(dataset, data=data)
    store = recorded_store(record)
    if store is not None:
        return OpenedStore(store, False, "opened", time.perf_counter() - begin)
    gone = f"the graph of the run {run.shown} is no longer at {record.path}"
    if is_object(dataset):
        raise UserError(
            f"{gone}, and it was given as an object in Python.",
            "train(config, data=data) stores the same object at the same place again.",
        )
    try:
        opened = prepare_store(dataset)
    except UserError as error:
        raise UserError(
            f"{gone}, and it cannot be built again: {error.message}", error.hint
        ) from error
    if opened.store.content_digest != record.digest:
        raise UserError(
            f"{gone}, and the data set {dataset.name} gives another graph today "
            f"({opened.store.path} holds other bytes)",
            "Bring the raw files back as they were, or train a new run on the new graph.",
        )
    return opened


def open_recorded(
    dataset: DatasetConfig, record: StoreRecord | None, *, data: object = None
) -> OpenedStore:
    """The graph of a run that another machine leads: the recorded store if it is here too, else
    that of the data set."""
    begin = time.perf_counter()
    store = None if record is None else recorded_store(record)
    if store is not None:
        return OpenedStore(store, False, "opened", time.perf_counter() - begin)
    return prepare_store(dataset, data=data)


def is_object(dataset: DatasetConfig) -> bool:
    """Whether the graph was given as an object in Python."""
    return isinstance(dataset, FilesConfig) and not any(getattr(dataset, k) for k in _GRAPH_FILES)


def recorded_store(record: StoreRecord) -> StoredGraph | None:
    """The recorded store; None if it is missing, or holds another graph."""
    try:
        store = StoredGraph.open(Path(record.path))
    except StoreError:
        return None
    return store if store.content_digest == record.digest else None
