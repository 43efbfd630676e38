"""Sampling typed graphs: blocks by edge type, and the interface of the samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import Tensor

from gnntrain.config.problems import meant_or
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block

DEFAULT = "default"
"""Stands for all edge types whose fan-outs are not given."""

FanOutScope = Literal["relation", "node"]
"""See `HeteroSampler`."""

FanOuts = Mapping[EdgeType, tuple[int, ...]]
"""In-neighbours of each edge type to draw for a node, the hop next to the seeds first."""


def resolved_fan_outs(
    given: AnyFanOuts, schema: GraphSchema, num_layers: int, key: str = "sampler.fan_outs"
) -> FanOuts:
    """The fan-outs of each edge type of a graph.

    Args:
        given: One list for all edge types; or lists by edge type, and `default` for all others. An
            edge type is `author/writes/paper`, or `writes` where no other has this relation.
        schema: The types of the graph.
        num_layers: The length of each list.
        key: The key that gives them, for messages.

    Raises:
        UserError: No edge type has a name that is given, or several have it, or it is given twice;
            an edge type has no fan-outs; or a list is of another length.
    """
    if not isinstance(given, Mapping):
        given = {DEFAULT: given}
    for name, fan_outs in given.items():
        if len(fan_outs) != num_layers:
            raise UserError(
                f"{key}: the fan-outs of {name} are {list(fan_outs)}, not one number a layer.",
                f"The model has {num_layers} layers.",
            )
    own = [(_edge_type(name, schema, key), name) for name in given if name != DEFAULT]
    names = dict(own)
    for edge_type, name in own:
        if names[edge_type] != name:
            raise UserError(
                f"{key} has {'/'.join(edge_type)} twice: as {name} and as {names[edge_type]}.",
                "Give one of them.",
            )
    lacking = [edge for edge in schema.edge_types if edge not in names and DEFAULT not in given]
    if lacking:
        raise UserError(
            f"{key} has no fan-outs for {', '.join(map('/'.join, lacking))}.",
            f"Add theirs, or {DEFAULT}, which stands for all others.",
        )
    return {edge: tuple(given[names.get(edge, DEFAULT)]) for edge in schema.edge_types}


def _edge_type(name: str, schema: GraphSchema, key: str) -> EdgeType:
    """The edge type of this name, or of this relation."""
    found = [edge for edge in schema.edge_types if name in ("/".join(edge), edge[1])]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(map("/".join, found))
        raise UserError(
            f"{key}: {name} is the relation of {len(found)} edge types.",
            f"Write one of {several}.",
        )
    edge_types = ["/".join(edge) for edge in schema.edge_types]
    known = [*edge_types, *(edge[1] for edge in schema.edge_types), DEFAULT]
    raise UserError(
        f"{key}: {name} is no edge type of the graph.",
        meant_or(name, known, f"The edge types are {', '.join(edge_types)}."),
    )


@dataclass(frozen=True, slots=True)
class HeteroBlock:
    """The in-edges of some destination nodes of each type: one layer's message passing.

    The destinations of a type are the first `num_dst` of its `num_src` source nodes.

    Attributes:
        edges: A bipartite block for each edge type of the graph: its sources number the nodes of
            the source type, its destinations are those of the destination type.
        num_dst: Number of destinations of each node type.
        num_src: Number of sources of each node type.
    """

    edges: Mapping[EdgeType, Block]
    num_dst: Mapping[NodeType, int]
    num_src: Mapping[NodeType, int]

    @property
    def num_edges(self) -> int:
        return sum(block.num_edges for block in self.edges.values())

    def into(self, node_type: NodeType) -> dict[EdgeType, Block]:
        """The blocks whose destinations are of `node_type`."""
        return {edge: block for edge, block in self.edges.items() if edge[2] == node_type}


@dataclass(frozen=True, slots=True)
class HeteroSubgraph:
    """A sampled multi-hop neighbourhood in a typed graph, see `SampledSubgraph`.

    Attributes:
        nodes: By node type, int64 `[num_nodes]`: ids within the type, in order of discovery; of the
            target type the seeds come first, as given.
        target: The node type of the seeds.
        num_seeds: Number of seeds.
        blocks: One a hop, in the order of a model's layers: the hop farthest from the seeds first.
            Every hop draws again for *all* nodes found so far.
        num_sampled_nodes: By node type, as in PyG: the seeds, then the nodes that each hop found.
        num_sampled_edges: By edge type, as in PyG: for each hop, the one next to the seeds first,
            the edges to the nodes that the hop before found (or to the seeds).
    """

    nodes: Mapping[NodeType, Tensor]
    target: NodeType
    num_seeds: int
    blocks: tuple[HeteroBlock, ...]
    num_sampled_nodes: Mapping[NodeType, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]

    @classmethod
    def of(
        cls,
        nodes: Mapping[NodeType, Tensor],
        target: NodeType,
        num_seeds: int,
        hops: Sequence[HeteroBlock],
    ) -> HeteroSubgraph:
        """The subgraph of some hops.

        Args:
            nodes, target, num_seeds: See the attributes.
            hops: The blocks, in host memory, the hop next to the seeds first.
        """
        none = dict.fromkeys(nodes, 0)
        known = [none, none | {target: num_seeds}, *(hop.num_src for hop in hops)]
        return cls(
            nodes=nodes,
            target=target,
            num_seeds=num_seeds,
            blocks=tuple(reversed(hops)),
            num_sampled_nodes={
                name: [after[name] - before[name] for before, after in pairwise(known)]
                for name in nodes
            },
            num_sampled_edges={
                name: [
                    hop.edges[name].num_edges - int(hop.edges[name].indptr[oldest[name[2]]])
                    for hop, oldest in zip(hops, known, strict=False)
                ]
                for name in (hops[0].edges if hops else ())
            },
        )


class HeteroSampler(ABC):
    """Draws the neighbourhood of seed nodes of one type of a typed graph.

    A package adds a sampler as it adds a `Sampler`.

    Args:
        edges: The in-edges of all types. They are only read.
        target: The node type of the seeds.
        fan_outs: In-neighbours to draw for a node, by edge type; −1 takes all.
        scope: Whether a fan-out is for the in-edges of a node of one edge type (relation), or of
            all edge types together (node): all edge types into a node type then have the same.
        replace: Draw with replacement: where there are in-edges, exactly the fan-out is taken.
        edge_ids: Also return each edge's position among those of its type.

    Attributes:
        thread_safe: Whether `sample` may be called in background threads, several at a time.
    """

    thread_safe: ClassVar[bool] = True

    @abstractmethod
    def __init__(
        self,
        edges: FusedCSC,
        target: NodeType,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None: ...

    @abstractmethod
    def sample(self, seeds: Tensor, key: SampleKey) -> HeteroSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Integers `[num_seeds]`, nodes of the target type.
            key: Key of the draw. Equal seeds and keys give equal subgraphs.
        """
