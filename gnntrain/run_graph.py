"""The graph of a run: the store of its data set, or the parts of a graph that is held in parts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gnntrain.config import Config
from gnntrain.config.problems import shown
from gnntrain.data.build import OpenedStore
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import JSON, Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import UserError
from gnntrain.reporting.rundir import StoreRecord
from gnntrain.reporting.text import counted
from gnntrain.run_store import is_object, open_run_store, prepare_options

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


class OpenedParts(NamedTuple):
    """As `OpenedStore`, for a graph in parts, of which none is open here."""

    store: PartitionedGraph
    reason: str
    seconds: float


def open_graph(
    config: Config, record: StoreRecord | None = None, *, data: object = None
) -> OpenedStore | OpenedParts:
    """Open what a run trains on: the data set's store, built if necessary, or its parts.

    Args:
        config: The whole configuration.
        record: The graph that the run was trained on before; None: the run is new.
        data: See `prepare_store`.

    Raises:
        UserError: As `open_run_store`; or the parts are missing, or those of another graph.
    """
    if config.distributed.graph != "partitioned":
        return open_run_store(record, config.dataset, data=data)
    if data is not None:
        raise UserError(
            "data is given, and so is distributed.parts: these are two graphs.",
            "Leave one of them out.",
        )
    begin = time.perf_counter()
    folder, dataset = config.distributed.parts, config.dataset
    assert folder is not None, "refused with the configuration"
    parts = PartitionedGraph.open(Path(folder), range(0))
    of, options = parts.meta, prepare_options(dataset).to_dict()
    if differing := [key for key, value in options.items() if of.options.get(key) != value]:
        there = ", ".join(f"dataset.{key}={shown(of.options.get(key))}" for key in differing)
        raise UserError(
            f"distributed.parts={folder} was prepared with {there}; this run is not.",
            "Write the same keys, or make other parts with gnntrain partition.",
        )
    is_same = of.dataset == dataset.name
    if record is not None:
        is_same = record.digest == of.source
    elif not is_object(dataset):
        try:
            identity = builder_for(dataset).identity()
        except UserError:  # its files are not here, nor do they need to be
            pass
        else:
            is_same = _without_places(identity) == _without_places(of.identity)
    if not is_same:
        raise UserError(
            f"distributed.parts={folder} holds another graph than dataset={dataset.name} with the "
            "keys of this run.",
            "Write the keys of the data set with which the parts were made, or make other parts "
            "with gnntrain partition.",
        )
    return OpenedParts(parts, f"{parts.num_parts} parts", time.perf_counter() - begin)


def _without_places(identity: JSON) -> JSON:
    """An identity without where files are."""
    if isinstance(identity, dict):
        places = ("root", "path")
        return {k: _without_places(value) for k, value in identity.items() if k not in places}
    return [*map(_without_places, identity)] if isinstance(identity, list) else identity


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
    """Raise a UserError where the number of parts is no multiple of that of machines, or servers,
    that share them out."""
    holders = plan.servers or plan.num_machines
    if isinstance(graph, PartitionedGraph) and graph.num_parts % holders:
        kind = "server" if plan.servers else "machine"
        raise UserError(
            f"{graph.path} has {counted(graph.num_parts, 'part')} for {counted(holders, kind)}.",
            f"Make as many parts as {kind}s with gnntrain partition --parts {holders}, or a "
            "multiple.",
        )
