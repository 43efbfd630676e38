"""The graph of a run: the store of its data set, or the parts of a graph that is held in parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.config import Config, DatasetConfig
from gnntrain.config.problems import shown
from gnntrain.data.build import OpenedStore
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import JSON, Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.reporting.rundir import RunDirectory, StoreRecord
from gnntrain.reporting.text import counted
from gnntrain.run_store import (
    is_object,
    open_recorded,
    open_run_store,
    prepare_options,
    prepare_store,
)

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


@dataclass(frozen=True)
class OpenedParts:
    """As `OpenedStore`, for a graph in parts, of which none is open here.

    Attributes:
        store: What is known of the whole graph.
        reason: How it was opened.
        seconds: Time it took.
    """

    store: PartitionedGraph
    reason: str
    seconds: float


def prepare_graph(config: Config, *, data: object = None) -> OpenedStore | OpenedParts:
    """Open what a run trains on: the data set's store, built if necessary, or its parts.

    Args:
        config: The whole configuration.
        data: See `prepare_store`.

    Raises:
        UserError: The parts are missing, or those of another graph.
    """
    if config.distributed.graph != "partitioned":
        return prepare_store(config.dataset, data=data)
    if data is not None:
        raise UserError(
            "data is given, and so is distributed.parts: these are two graphs.",
            "Leave one of them out.",
        )
    return _open_parts(config)


def _open_parts(config: Config, digest: str | None = None) -> OpenedParts:
    """Open the parts of the configuration's graph, or of the graph with this digest."""
    begin = time.perf_counter()
    folder, dataset = config.distributed.parts, config.dataset
    assert folder is not None, "refused with the configuration"
    parts = PartitionedGraph.open(Path(folder), range(0))
    wanted = prepare_options(dataset)
    differing = [
        key for key, value in wanted.to_dict().items() if parts.meta.options.get(key) != value
    ]
    if differing:
        told = ", ".join(f"dataset.{key}={shown(parts.meta.options.get(key))}" for key in differing)
        raise UserError(
            f"distributed.parts={folder} was prepared with {told}; this run is not.",
            "Write the same keys, or make other parts with gnntrain partition.",
        )
    if digest != parts.meta.source and not _is_of(parts, dataset):
        raise UserError(
            f"distributed.parts={folder} holds another graph than dataset={dataset.name} with the "
            "keys of this run.",
            "Write the keys of the data set with which the parts were made, or make other parts "
            "with gnntrain partition.",
        )
    seconds = time.perf_counter() - begin
    return OpenedParts(parts, f"{parts.num_parts} parts", seconds)


def _is_of(parts: PartitionedGraph, dataset: DatasetConfig) -> bool:
    """Whether the parts are of the data set, as far as is known without its store."""
    if is_object(dataset):
        return parts.meta.dataset == dataset.name
    try:
        identity = builder_for(dataset).identity()
    except UserError:  # its files are not here, nor do they need to be
        return parts.meta.dataset == dataset.name
    return _without_places(identity) == _without_places(parts.meta.identity)


def _without_places(identity: JSON) -> JSON:
    """An identity without where files are."""
    if isinstance(identity, dict):
        places = ("root", "path")
        return {k: _without_places(value) for k, value in identity.items() if k not in places}
    return [*map(_without_places, identity)] if isinstance(identity, list) else identity


def open_run_graph(
    run: RunDirectory, config: Config, *, data: object = None
) -> OpenedStore | OpenedParts:
    """The graph that the run was trained on, to go on with it: its store, or its parts.

    Args:
        run: The run.
        config: The whole configuration.
        data: See `prepare_store`.

    Raises:
        UserError: As `open_run_store`; or the parts are those of another graph.
    """
    if config.distributed.graph != "partitioned":
        return open_run_store(run, config.dataset, data=data)
    record = run.store_record()
    opened = _open_parts(config, None if record is None else record.digest)
    if record is not None and record.digest != opened.store.content_digest:
        raise UserError(
            f"distributed.parts={config.distributed.parts} holds another graph than the run "
            f"{run.shown} was trained on.",
            "Make parts of that graph with gnntrain partition.",
        )
    return opened


def open_recorded_graph(
    config: Config, record: StoreRecord | None, *, data: object = None
) -> OpenedStore | OpenedParts:
    """The graph of a run that another machine leads.

    Args:
        config: The whole configuration.
        record: The graph that the run was trained on before; None: the run is new.
        data: See `prepare_store`.
    """
    if config.distributed.graph == "partitioned":
        return _open_parts(config)
    return open_recorded(config.dataset, record, data=data)


def rank_graph(
    config: Config, path: Path, context: DistributedContext, exchange: Exchange | None
) -> StoredGraph | PartitionedGraph:
    """The graph for a rank: the store, or the parts that it holds.

    Args:
        config: The whole configuration.
        path: The folder of the store, or of the parts.
        context: This rank.
        exchange: Says which parts the rank holds; None: the graph is not in parts.

    Raises:
        UserError: A part of this machine is missing or damaged.
    """
    if config.distributed.graph != "partitioned":
        return StoredGraph.open(path, check=False)
    assert exchange is not None, "the owners of a graph in parts must be asked"
    num_parts = PartitionedGraph.open(path, range(0), check=False).num_parts
    own = slice(0, 0)
    if exchange.owner is not None:
        own = rank_range(num_parts, exchange.owner, exchange.num_owners)
    parts = range(own.start, own.stop)
    return PartitionedGraph.open(path, parts, check=context.is_machine_main)


def refuse_unequal_parts(graph: Graph, plan: LaunchPlan) -> None:
    """Refuse parts that the machines, or the servers, cannot share out.

    Raises:
        UserError: Their number is no multiple of the number of machines, or of servers.
    """
    if not isinstance(graph, PartitionedGraph):
        return
    holders, num_parts = plan.servers or plan.num_machines, graph.num_parts
    if num_parts % holders:
        kind = "server" if plan.servers else "machine"
        raise UserError(
            f"{graph.path} has {counted(num_parts, 'part')} for {counted(holders, kind)}.",
            f"Make as many parts as {kind}s with gnntrain partition --parts {holders}, or a "
            "multiple.",
        )
