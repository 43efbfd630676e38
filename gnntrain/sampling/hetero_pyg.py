"""PyG's own sampling of typed graphs, by pyg-lib or torch-sparse: `sampler.backend=pyg`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.base import HeteroSamplerOutput

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import NodeType
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.cpu import checked_fan_outs
from gnntrain.sampling.hetero import (
    FanOuts,
    FanOutScope,
    HeteroBlock,
    HeteroSampler,
    HeteroSubgraph,
)
from gnntrain.sampling.pyg import (
    blocks_of,
    refuse_repeated,
    require_pyg_backend,
    seeded,
    shared_graph,
)


class HeteroPyGSampler(HeteroSampler):
    """Draws with PyG's own `NeighborSampler`, on which PyG's `NeighborLoader` runs.

    Each node draws once, when it is found. For the random numbers see `pyg.PyGSampler`.

    Args:
        edges, target, fan_outs, replace: See `HeteroSampler`.
        scope: "relation": PyG's samplers have no other.
        edge_ids: Ignored: PyG always returns the edges' positions.

    Raises:
        UserError: Neither pyg-lib nor torch-sparse is installed; or another scope.
    """

    thread_safe = False

    def __init__(
        self,
        edges: FusedCSC,
        target: NodeType,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        require_pyg_backend()
        if scope != "relation":
            raise UserError(
                f"sampler.backend=pyg cannot draw with sampler.fan_out_scope={scope}",
                "PyG's fan-outs are those of a relation; sampler.backend=numba has both.",
            )
        self._edges = edges
        self._target = target
        checked = {name: list(checked_fan_outs(fan_outs[name])) for name in edges.edge_types}
        self._num_hops = len(checked[edges.edge_types[0]])
        self._has_types = len(edges.num_nodes) > 1 or len(checked) > 1
        # PyG's sampler keeps only the tensors; other samplers share the object as long as it lives.
        self._graph = shared_graph(edges)
        self._sampler = NeighborSampler(
            (self._graph, self._graph),
            checked if self._has_types else checked[edges.edge_types[0]],
            replace=replace,
        )
        if self._has_types:
            # PyG keeps them in the order of a set, another one in every process; draws follow it.
            self._sampler.node_types = list(edges.num_nodes)
            self._sampler.edge_types = list(edges.edge_types)

    def sample(self, seeds: Tensor, key: SampleKey) -> HeteroSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: int64 `[num_seeds]`, nodes of the target type, each once.
            key: Key of the draw, together with the first seed.

        Raises:
            UserError: A seed occurs twice (pyg-lib would return edges that are not there).
        """
        refuse_repeated(seeds)
        inputs = NodeSamplerInput(None, seeds, input_type=self._target if self._has_types else None)
        with seeded(key.seed, key.epoch, key.step, *seeds[:1].tolist()), _one_thread():
            drawn = self._sampler.sample_from_nodes(inputs)
        return self._subgraph(_by_type(drawn, self._edges), len(seeds))

    def _subgraph(self, drawn: HeteroSamplerOutput, num_seeds: int) -> HeteroSubgraph:
        """The subgraph of what pyg-lib and torch-sparse return: edges of a type by destination,
        nodes of a type numbered as they are found.
        """
        known = [dict.fromkeys(self._edges.num_nodes, 0) | {self._target: num_seeds}]
        for _ in range(self._num_hops):
            # torch-sparse does not count by hop: derive the counts from the node numbers.
            known.append(_found(drawn, known[-1]))
        nodes = {name: drawn.node[name].long() for name in known[0]}
        return HeteroSubgraph.of(nodes, self._target, num_seeds, self._hops(drawn, known))

    def _hops(
        self, drawn: HeteroSamplerOutput, known: Sequence[Mapping[NodeType, int]]
    ) -> list[HeteroBlock]:
        by_type = {}
        for name in self._edges.edge_types:
            num_dst = [sizes[name[2]] for sizes in known[:-1]]
            num_src = [sizes[name[0]] for sizes in known[1:]]
            edges = drawn.row[name], drawn.col[name], drawn.edge[name]
            by_type[name] = blocks_of(*edges, num_dst, num_src)[::-1]
        return [
            HeteroBlock({name: blocks[hop] for name, blocks in by_type.items()}, before, after)
            for hop, (before, after) in enumerate(pairwise(known))
        ]


def _by_type(drawn: SamplerOutput | HeteroSamplerOutput, edges: FusedCSC) -> HeteroSamplerOutput:
    """What PyG drew, also of a graph with one type, which it takes for a homogeneous one."""
    if isinstance(drawn, HeteroSamplerOutput):
        return drawn
    (node_type,), (edge_type,) = edges.num_nodes, edges.edge_types
    return HeteroSamplerOutput(
        node={node_type: drawn.node},
        row={edge_type: drawn.row},
        col={edge_type: drawn.col},
        edge={edge_type: drawn.edge},
        batch=None,
    )


def _found(drawn: HeteroSamplerOutput, known: Mapping[NodeType, int]) -> dict[NodeType, int]:
    """The number of nodes of each type that are known when these have drawn."""
    found = dict(known)
    for name, row in drawn.row.items():
        num_edges = int(np.searchsorted(drawn.col[name].numpy(), known[name[2]]))
        last = int(row[:num_edges].numpy().max(initial=-1))
        found[name[0]] = max(found[name[0]], last + 1)
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: pyg-lib's threads draw from one generator, in any order."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
