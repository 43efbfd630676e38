"""PyG's own sampling, by pyg-lib or torch-sparse: `sampler.backend=pyg`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EDGE, NODE, Edges, Graph, Nodes
from gnntrain.data.pyg_graph import PyGGraph
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampledSubgraph, SampleKey, Sampler
from gnntrain.sampling.block import Block
from gnntrain.sampling.cpu import check_hop_edges, checked_fan_outs


class PyGSampler(Sampler):
    """Draws with PyG's own `NeighborSampler`, on which PyG's `NeighborLoader` runs.

    Each node draws once, when it is found, as always in PyG.

    pyg-lib and torch-sparse draw from torch's generator, the one of dropout. Every call seeds it by
    its key and its first seed, and puts it back. So a run can be repeated and resumed exactly, and
    evaluation does not disturb training; but `sample` must be called in the thread of the training
    step, and, unlike with the built-in samplers, a draw depends on the number of ranks.

    Args:
        indptr: int64 `[num_nodes + 1]`, where each node's in-edges start in `indices`.
        indices: int32 or int64 `[num_edges]`, the source node of each edge.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        edge_ids: Ignored: PyG always returns the edges' positions.

    Raises:
        UserError: Neither pyg-lib nor torch-sparse is installed.
    """

    thread_safe = False

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        self._num_hops = len(fan_outs)
        require_pyg_backend()
        # PyG's sampler keeps only the tensors; other samplers share the object as long as it lives.
        num_nodes, num_edges = {NODE: len(indptr) - 1}, [len(indices)]
        edges = FusedCSC.cut([EDGE], num_nodes, num_edges, indptr.numpy(), indices.numpy())
        self._graph = shared_graph(edges)
        num_neighbors = list(checked_fan_outs(fan_outs))
        self._sampler = NeighborSampler((self._graph, self._graph), num_neighbors, replace=replace)

    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: int64 `[num_seeds]`, global node ids, each once.
            key: Key of the draw, together with the first seed.

        Raises:
            UserError: A seed occurs twice (pyg-lib would return edges that are not there).
        """
        refuse_repeated(seeds)
        with seeded(key.seed, key.epoch, key.step, *seeds[:1].tolist()):
            drawn = self._sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
        return subgraph_of(drawn, len(seeds), self._num_hops)


_shared: WeakValueDictionary[tuple[int, int, bool], PyGGraph] = WeakValueDictionary()


def shared_graph(edges: FusedCSC) -> PyGGraph:
    """The edges for PyG's samplers; one object for all samplers, as it may hold a copy."""
    key = edges.indptr.ctypes.data, edges.indices.ctypes.data, torch_geometric.typing.WITH_PYG_LIB
    graph = _shared.get(key)
    if graph is None:
        sizes = edges.num_nodes.items()
        nodes = {name: Nodes(np.empty((size, 0), np.float32)) for name, size in sizes}
        by_type = {name: Edges(*edges.part(i)) for i, name in enumerate(edges.edge_types)}
        graph = _shared[key] = PyGGraph(Graph(nodes, by_type))
    return graph


def subgraph_of(drawn: SamplerOutput, num_seeds: int, num_hops: int) -> SampledSubgraph:
    """The subgraph that one of PyG's samplers drew.

    Each node draws once, when it is found; later hops use the same edges again, as PyG's trimmed
    models do.

    Args:
        drawn: As pyg-lib and torch-sparse fill it: edges by destination, nodes numbered as they are
            found. No seed occurs twice.
        num_seeds: The first of the nodes.
        num_hops: Number of hops.
    """
    sources, destinations = drawn.row.numpy(), drawn.col.numpy()
    num_known, ends = [num_seeds], [0]
    for _ in range(num_hops):
        # torch-sparse does not count by hop: derive the counts from the node numbers.
        ends.append(int(np.searchsorted(destinations, num_known[-1])))
        num_known.append(int(sources[: ends[-1]].max(initial=num_known[-1] - 1)) + 1)
    blocks = blocks_of(drawn.row, drawn.col, drawn.edge, num_known[:-1], num_known[1:])
    num_new_edges = [int(after - before) for before, after in pairwise(ends)]
    return SampledSubgraph(drawn.node.long(), num_seeds, blocks, num_new_edges)


def blocks_of(
    row: Tensor, col: Tensor, edge: Tensor, num_dst: Sequence[int], num_src: Sequence[int]
) -> tuple[Block, ...]:
    """The blocks of edges as PyG draws them: each node once, when it is found.

    All blocks are views of one CSC; older destinations bring the edges that they drew earlier.

    Args:
        row, col: Local numbers of sources and destinations, by destination.
        edge: Positions of the edges.
        num_dst: For each hop, the destinations known before it.
        num_src: For each hop, the sources known after it.
    """
    check_hop_edges(len(row))
    last = num_dst[-1] if num_dst else 0
    indptr = np.zeros(last + 1, np.int32)
    np.cumsum(np.bincount(col.numpy(), minlength=last), out=indptr[1:])
    offsets, indices, edge_ids = torch.from_numpy(indptr), row.to(torch.int32), edge.long()
    blocks = []
    for known, found in zip(num_dst, num_src, strict=True):
        num_edges = int(indptr[known])
        ids = edge_ids[:num_edges]
        blocks.append(Block(offsets[: known + 1], indices[:num_edges], found, edge_ids=ids))
    return tuple(reversed(blocks))


def require_pyg_backend() -> None:
    """Raises UserError if neither pyg-lib nor torch-sparse is installed."""
    typing = torch_geometric.typing
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        return
    version = torch.__version__.partition("+")[0]
    raise UserError(
        "sampler.backend=pyg needs pyg-lib or torch-sparse, and neither can be imported",
        f"Install pyg-lib with `pip install pyg-lib -f https://data.pyg.org/whl/torch-{version}"
        "+cpu.html` (or +cu…), or build torch-sparse with `pip install --no-build-isolation "
        "torch-scatter torch-sparse`; sampler.backend=numba needs nothing.",
    )


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed torch's CPU generator by `key` inside the block, and restore it after."""
    seed = np.random.SeedSequence([part % 2**64 for part in key]).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed[0]))
        yield


def refuse_repeated(seeds: Tensor) -> None:
    num_repeated = len(seeds) - len(np.unique(seeds.numpy()))
    if num_repeated > 0:
        raise UserError(
            f"{num_repeated} of {len(seeds)} seeds are repetitions",
            "Give each seed once, or use sampler.backend=numba.",
        )
