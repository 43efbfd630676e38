"""The graph of a run: a store or parts of one; and what a model that was trained on it takes and
gives."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from gnntrain.config import Config, DatasetConfig, FilesConfig, SyntheticConfig
from gnntrain.config.problems import did_you_mean, shown
from gnntrain.data.array_folder import StoreError
from gnntrain.data.build import OpenedStore, open_or_build, store_name
from gnntrain.data.datasets import builder_for
from gnntrain.data.feature_statistics import FeatureStatistics
from gnntrain.data.graph import JSON, NODE, Graph, GraphSchema, Nodes, NodeType, PrepareOptions
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing
from gnntrain.data.store import StoredGraph
from gnntrain.data.stores import stores_folder
from gnntrain.data.targets import TargetScale
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind
from gnntrain.reporting.rundir import RunDirectory, StoreRecord
from gnntrain.reporting.text import counted, format_seconds

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange
    from gnntrain.distributed.launch import LaunchPlan

_GRAPH_FILES = ("data", "schema", "edges", "features")


@dataclass(frozen=True)
class ModelSignature:
    """Inputs and outputs of a model that was trained on a graph, as `store.json` keeps them."""

    # As of `Graph`.
    dataset: str
    task: LabelKind
    metric: str
    num_features: Annotated[int, Field(ge=0)]  # a node, of the target type
    num_classes: Annotated[int, Field(ge=1)]  # of a regression: targets
    schema: GraphSchema
    # The classes (targets) as the user's labels call them; None: 0, 1, ….
    class_names: list[str] | list[int] | None = None
    has_edge_weight: bool = False
    preprocessing: dict[NodeType, Preprocessing] = field(default_factory=dict)  # of users' columns
    target_scale: TargetScale | None = None  # of a regression
    # Digests of the user's ids of the nodes without features: a model of typed graphs has learnt a
    # row for each.
    id_digests: dict[NodeType, str] = field(default_factory=dict)
    # Of the features; empty where the graph was in parts.
    statistics: dict[NodeType, FeatureStatistics] = field(default_factory=dict)
    # What `dataset.normalize_features` subtracted; None: it was not set.
    lowest: dict[NodeType, float] | None = None

    @classmethod
    def of(cls, store: StoredGraph | PartitionedGraph) -> ModelSignature:
        """The signature of a model that is trained on `store`, without statistics."""
        bare = {name: nodes for name, nodes in store.nodes.items() if not nodes.num_features}
        return cls(
            dataset=store.dataset,
            task=store.task,
            metric=store.metric,
            num_features=store.schema.num_features[store.target],
            num_classes=store.num_classes,
            schema=store.schema,
            class_names=store.class_names,
            has_edge_weight=any(edges.weight is not None for edges in store.edges.values()),
            preprocessing=store.meta.preprocessing,
            target_scale=store.target_scale() if store.task == "continuous" else None,
            id_digests={t: digest for t, nodes in bare.items() if (digest := _id_digest(nodes))},
            lowest=store.meta.lowest,
        )

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain data."""
        plain: dict[str, Any] = TypeAdapter(ModelSignature).dump_python(self, mode="json")
        return plain

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer, see `Graph.num_outputs`."""
        return 1 if self.task == "binary" else self.num_classes

    def has_other_nodes(self, graph: Graph, name: NodeType) -> bool:
        """Whether a type has other nodes in `graph` than the model was trained on."""
        nodes, known = graph.nodes[name], self.id_digests.get(name)
        return len(nodes) != self.schema.num_nodes[name] or known != _id_digest(nodes)


def _id_digest(nodes: Nodes) -> str | None:
    """A digest of the user's ids; None: nodes are called by their numbers."""
    return None if nodes.ids is None else blake2b(np.ascontiguousarray(nodes.ids).data).hexdigest()


def refuse_other_types(
    signature: ModelSignature, graph: Graph, *, subject: str, exactly: bool = False
) -> None:
    """Raise a UserError for a graph that lacks a type of the one that a model was trained on, or,
    `exactly`, has further ones; `subject` is the model in the message."""
    for kind in ("node", "edge"):
        there, here = (
            list(schema.node_types) if kind == "node" else ["/".join(t) for t in schema.edge_types]
            for schema in (signature.schema, graph.schema)
        )
        for name in (name for name in there if name not in here):
            raise UserError(
                f"{subject} was trained with the {kind} type {name}, which the graph "
                f"{graph.dataset} lacks.",
                did_you_mean(name, here, f"It has the {kind} types {', '.join(here)}."),
            )
        for name in (name for name in here if exactly and name not in there):
            raise UserError(
                f"{subject} was trained without the {kind} type {name} of the graph "
                f"{graph.dataset}.",
                f"It was trained with {', '.join(there)}.",
            )


def model_signature(run: RunDirectory) -> ModelSignature:
    """The signature of a run's model; a UserError where the run did not record it, or the record is
    damaged."""
    record = run.store_record()
    if record is None or record.learnt is None:
        told = f"{run.shown} does not record its model: an older gnntrain wrote it."
        raise UserError(told, "Train it anew.")
    learnt = record.learnt
    if isinstance(learnt, dict) and "preprocessing_by_type" in learnt:  # of an older run
        one, by_type = learnt.get("preprocessing"), learnt["preprocessing_by_type"]
        learnt = {**learnt, "preprocessing": by_type or ({NODE: one} if one else {})}
    try:
        # As JSON: of Python's objects, strictness takes none but a `ModelSignature`.
        return TypeAdapter(ModelSignature).validate_json(json.dumps(learnt), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["learnt", *map(str, first["loc"])])
        raise UserError(
            f"{run.path / 'store.json'} cannot be read: {where}: {first['msg']}"
        ) from error


def prepare_store(
    dataset: DatasetConfig,
    *,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
    lowest: Mapping[NodeType, float] | None = None,
    data: object = None,
) -> OpenedStore:
    """Open the data set's graph store; build it first if necessary.

    Args:
        dataset: The data set.
        labelled: Whether a user's own files must have labels and splits.
        preprocessing, lowest: Those that a model was trained with: of a user's own files, of a
            typed graph by node type; and what `dataset.normalize_features` subtracts. None: those
            of this graph.
        data: The graph as an object, see `gnntrain.run.train`; None: the graph of `dataset`.
    """
    own = dataset
    if data is not None:
        own = object_dataset(dataset).for_target(dataset.target)
        preprocessing = None if isinstance(preprocessing, Mapping) else preprocessing
    builder = builder_for(own, data=data, labelled=labelled, preprocessing=preprocessing)
    options = _prepare_options(dataset)
    if options.normalize_features:
        options = replace(options, lowest=lowest)
    return open_or_build(stores_folder(dataset), builder.identity, options, builder.build)


def object_dataset(dataset: DatasetConfig) -> FilesConfig:
    """The configuration of a graph given as an object; a UserError where `dataset` is another."""
    unnamed, other = FilesConfig(), list[str]()
    if isinstance(dataset, FilesConfig):
        other = [f"dataset.{key}" for key in (*_GRAPH_FILES, "labels") if getattr(dataset, key)]
    else:
        other = [f"dataset={dataset.name}"] * (dataset.for_target(None) != SyntheticConfig())
        dataset = unnamed
    if other:
        raise UserError(
            f"data is given, and so is {other[0]}: these are two graphs.",
            "Leave one of them out; keys for data go into FilesConfig(…).",
        )
    is_named = dataset.name != unnamed.name
    return dataset if is_named else dataset.model_copy(update={"name": "data"})


def is_object(dataset: DatasetConfig) -> bool:
    """Whether the graph was given as an object in Python."""
    return isinstance(dataset, FilesConfig) and not any(getattr(dataset, k) for k in _GRAPH_FILES)


def _prepare_options(dataset: DatasetConfig) -> PrepareOptions:
    names = [field.name for field in fields(PrepareOptions) if field.name != "lowest"]
    return PrepareOptions(**{name: getattr(dataset, name) for name in names})


def store_folder(dataset: DatasetConfig) -> Path:
    """The folder of the data set's own store, which need not exist yet."""
    identity = builder_for(dataset).identity()
    return stores_folder(dataset).absolute() / store_name(identity, _prepare_options(dataset))


def is_unchanged(record: StoreRecord, dataset: DatasetConfig) -> bool:
    """Whether the data set gives the recorded graph today, by its files' content; a UserError where
    they have gone."""
    return store_folder(dataset).name == Path(record.path).name


def record_of(graph: StoredGraph | PartitionedGraph) -> StoreRecord:
    """The record of a graph in a run directory: path, digest (the same in parts or whole) and model
    signature."""
    signature = ModelSignature.of(graph)
    if isinstance(graph, StoredGraph):  # parts have no rows here
        statistics = {
            name: FeatureStatistics.of(nodes, signature.preprocessing.get(name))
            for name, nodes in graph.nodes.items()
            if nodes.num_features
        }
        signature = replace(signature, statistics=statistics)
    return StoreRecord(str(graph.path), graph.content_digest, signature.to_dict())


def recorded_store(record: StoreRecord) -> StoredGraph | None:
    """The recorded store; None if it is missing, or holds another graph."""
    with contextlib.suppress(StoreError):
        store = StoredGraph.open(Path(record.path))
        if store.content_digest == record.digest:
            return store
    return None


def open_run_store(
    record: StoreRecord | None, dataset: DatasetConfig, *, data: object = None
) -> OpenedStore:
    """The graph that a run was trained on, byte for byte; None: the one of a new run. A store that
    is missing or holds another graph is built again from the configuration and compared: a
    UserError where the data set is another graph now, or none."""
    if record is None:
        return prepare_store(dataset, data=data)
    begin = time.perf_counter()
    if (store := recorded_store(record)) is not None:
        return OpenedStore(store, False, "opened", time.perf_counter() - begin)
    gone = f"the graph of this run is no longer at {record.path}"
    if is_object(dataset) and data is None:
        told = f"{gone}, and it was given as an object in Python."
        raise UserError(told, "train(config, data=data) stores it at the same place again.")
    try:
        opened = prepare_store(dataset, data=data)
    except UserError as error:
        told = f"{gone}, and it cannot be built again: {error.message}"
        raise UserError(told, error.hint) from error
    if opened.store.content_digest != record.digest:
        raise UserError(
            f"{gone}, and the data set {dataset.name} gives another graph today "
            f"({opened.store.path} holds other bytes)",
            "Bring the raw files back as they were, or train a new run on the new graph.",
        )
    return opened


def open_graph(
    config: Config,
    record: StoreRecord | None = None,
    *,
    plan: LaunchPlan | None = None,
    data: object = None,
) -> tuple[StoredGraph | PartitionedGraph, str]:
    """Open what a run trains on: the data set's store, built if necessary, or its parts, which the
    machines or servers of the `plan` share out equally. The text says how it was opened.

    Raises:
        UserError: As `open_run_store`; or the parts are missing, another graph's, or too few.
    """
    if config.distributed.graph != "partitioned":
        opened = open_run_store(record, config.dataset, data=data)
        return opened.store, f"{opened.reason} ({format_seconds(opened.seconds)})"
    if data is not None:
        told = "data is given, and so is distributed.parts: these are two graphs."
        raise UserError(told, "Leave one of them out.")
    folder, dataset = config.distributed.parts, config.dataset
    assert folder is not None, "refused with the configuration"
    parts = PartitionedGraph.open(Path(folder), range(0))
    of, options = parts.meta, _prepare_options(dataset).to_dict()
    is_same = of.dataset == dataset.name
    if record is not None:
        is_same = record.digest == of.source
    elif not is_object(dataset):
        with contextlib.suppress(UserError):  # its files are not here, nor do they need to be
            identity = _without_places(builder_for(dataset).identity())
            is_same = identity == _without_places(of.identity)
    there = {key: of.options.get(key) for key in options if of.options.get(key) != options[key]}
    made = ", ".join(f"dataset.{key}={shown(value)}" for key, value in there.items())
    if made or not is_same:
        raise UserError(
            f"distributed.parts={folder} holds another graph than dataset={dataset.name} with the "
            f"keys of this run; it was made with {made or 'other files'}.",
            "Write the keys with which the parts were made, or make others: gnntrain partition.",
        )
    holders = 1 if plan is None else plan.servers or len({*plan.machines}) or 1
    if parts.num_parts % holders:
        kind = "server" if plan and plan.servers else "machine"
        raise UserError(
            f"{parts.path} has {counted(parts.num_parts, 'part')} for {counted(holders, kind)}.",
            f"Make as many parts as {kind}s with gnntrain partition --parts {holders}, or a "
            "multiple.",
        )
    return parts, f"{parts.num_parts} parts"


def _without_places(identity: JSON) -> JSON:
    """An identity without where files are."""
    if isinstance(identity, dict):
        places = ("root", "path")
        return {k: _without_places(value) for k, value in identity.items() if k not in places}
    return [*map(_without_places, identity)] if isinstance(identity, list) else identity


def rank_graph(
    config: Config, path: Path, context: DistributedContext, exchange: Exchange | None
) -> StoredGraph | PartitionedGraph:
    """The graph for a rank: the store at `path`, or the parts there that `exchange` gives it; a
    UserError where a part of this machine is missing or damaged."""
    if config.distributed.graph != "partitioned":
        return StoredGraph.open(path, check=False)
    assert exchange is not None, "the owners of a graph in parts must be asked"
    parts = range(0)
    if exchange.owner is not None:
        num_parts = PartitionedGraph.open(path, parts, check=False).num_parts
        own = rank_range(num_parts, exchange.owner, exchange.num_owners)
        parts = range(own.start, own.stop)
    return PartitionedGraph.open(path, parts, check=context.is_machine_main)
