"""PyG's own sampling, by pyg-lib or torch-sparse: `sampler.backend=pyg`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.distributed import LocalGraphStore
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.base import HeteroSamplerOutput

from gnntrain.data.graph import EdgeType, FusedCSC, NodeType
from gnntrain.errors import UserError
from gnntrain.sampling.base import FanOuts, FanOutScope, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import Block, Hop, Sample
from gnntrain.sampling.cpu import check_hop_edges, num_seeds_of


class PyGSampler(Sampler):
    """Draws with PyG's own `NeighborSampler`, on which PyG's `NeighborLoader` runs.

    Each node draws once, when it is found, as always in PyG.

    pyg-lib and torch-sparse draw from torch's generator, the one of dropout. Every call seeds it by
    its key and its first seed, and puts it back. So a run can be repeated and resumed exactly, and
    evaluation does not disturb training; but `sample` must be called in the thread of the training
    step, and, unlike with the built-in samplers, a draw depends on the number of ranks.

    Args:
        scope: "relation": PyG's samplers have no other.
        edge_ids: Ignored: PyG always returns the edges' positions.

    Raises:
        UserError: Neither pyg-lib nor torch-sparse is installed.
    """

    thread_safe = False

    def __init__(
        self,
        edges: FusedCSC,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",  # noqa: ARG002
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        known = torch_geometric.typing
        if not (known.WITH_PYG_LIB or known.WITH_TORCH_SPARSE):
            version = torch.__version__.partition("+")[0]
            raise UserError(
                "sampler.backend=pyg needs pyg-lib or torch-sparse, and neither can be imported",
                "Install pyg-lib with `pip install pyg-lib -f https://data.pyg.org/whl/torch-"
                f"{version}+cpu.html` (or +cu…), or build torch-sparse with `pip install "
                "--no-build-isolation torch-scatter torch-sparse`; sampler.backend=numba needs "
                "nothing.",
            )
        self._edges = edges
        by_type = {name: list(fan_outs[name]) for name in edges.edge_types}
        self._num_hops = len(by_type[edges.edge_types[0]])
        self._has_types = len(edges.num_nodes) > 1 or len(by_type) > 1
        # PyG's sampler keeps only the tensors; other samplers share the object as long as it lives.
        self._graph = shared_graph(edges)
        self._sampler = NeighborSampler(
            (Data(), self._graph),  # which has no features
            by_type if self._has_types else by_type[edges.edge_types[0]],
            replace=replace,
        )
        if self._has_types:
            # PyG keeps them in the order of a set, another one in every process; draws follow it.
            self._sampler.node_types = list(edges.num_nodes)
            self._sampler.edge_types = list(edges.edge_types)

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Of one node type, each once.
            key: Key of the draw, together with the first seed.

        Raises:
            UserError: A seed occurs twice (pyg-lib would return edges that are not there).
        """
        ((target, nodes),) = seeds.nodes.items()
        num_repeated = len(nodes) - len(np.unique(nodes.numpy()))
        if num_repeated > 0:
            raise UserError(
                f"{num_repeated} of {len(nodes)} seeds are repetitions",
                "Give each seed once, or use sampler.backend=numba.",
            )
        inputs = NodeSamplerInput(None, nodes, input_type=target if self._has_types else None)
        with _repeatable(key.seed, key.epoch, key.step, *nodes[:1].tolist()):
            drawn = self._sampler.sample_from_nodes(inputs)
        return _sample_of(drawn, self._edges, num_seeds_of(seeds), self._num_hops)


def _sample_of(
    drawn: SamplerOutput | HeteroSamplerOutput,
    edges: FusedCSC,
    num_seeds: Mapping[NodeType, int],
    num_hops: int,
) -> Sample:
    """The sample that one of PyG's samplers drew: edges of a type by destination, nodes of a type
    numbered as they are found. No seed occurs twice.

    Each node draws once, when it is found; later hops use the same edges again, as PyG's trimmed
    models do: the blocks of all hops are views of one CSC.
    """
    if isinstance(drawn, SamplerOutput):  # of one type, for which PyG has no names
        (node_type,), (edge_type,) = edges.num_nodes, edges.edge_types
        nodes = {node_type: drawn.node.long()}
        found = {edge_type: (drawn.row, drawn.col, drawn.edge)}
    else:
        nodes = {name: drawn.node[name].long() for name in edges.num_nodes}
        found = {
            name: (drawn.row[name], drawn.col[name], drawn.edge[name]) for name in edges.edge_types
        }
    # torch-sparse does not count by hop: derive the counts from the node numbers.
    known = [dict.fromkeys(edges.num_nodes, 0) | dict(num_seeds)]
    for _ in range(num_hops):
        before, after = known[-1], dict(known[-1])
        for name, (row, col, _) in found.items():
            num_edges = int(np.searchsorted(col.numpy(), before[name[2]]))
            last = int(row[:num_edges].numpy().max(initial=-1))
            after[name[0]] = max(after[name[0]], last + 1)
        known.append(after)
    blocks: list[dict[EdgeType, Block]] = [{} for _ in range(num_hops)]
    for name, (row, col, edge) in found.items():
        check_hop_edges(len(row))
        last = known[-2][name[2]] if num_hops else 0
        indptr = np.zeros(last + 1, np.int32)
        np.cumsum(np.bincount(col.numpy(), minlength=last), out=indptr[1:])
        offsets, indices, edge_ids = torch.from_numpy(indptr), row.to(torch.int32), edge.long()
        for hop, (before, after) in enumerate(pairwise(known)):
            num_dst = before[name[2]]
            num_edges = int(indptr[num_dst])
            blocks[hop][name] = Block(
                offsets[: num_dst + 1],
                indices[:num_edges],
                after[name[0]],
                edge_ids=edge_ids[:num_edges],
            )
    hops = [Hop(own, *sizes) for own, sizes in zip(blocks, pairwise(known), strict=True)]
    return Sample(nodes, num_seeds, tuple(reversed(hops)))


_shared: WeakValueDictionary[tuple[int, int, bool], LocalGraphStore] = WeakValueDictionary()


def shared_graph(edges: FusedCSC) -> LocalGraphStore:
    """The edges for PyG's samplers, each type in CSC layout; the only type is called None.

    Of all forms of a graph that they accept, this one costs the least memory. pyg-lib reads the
    mapped `indices`; only `indptr` is copied, 4 bytes a node. torch-sparse reads 64-bit numbers
    alone: `indices` of int32 are copied, 8 bytes an edge. All samplers of a rank share the copies.
    """
    with_pyg_lib = torch_geometric.typing.WITH_PYG_LIB
    key = edges.indptr.ctypes.data, edges.indices.ctypes.data, with_pyg_lib
    graph = _shared.get(key)
    if graph is None:
        graph = _shared[key] = LocalGraphStore()
        has_types = len(edges.num_nodes) > 1 or len(edges.edge_types) > 1
        graph.meta = {"is_hetero": has_types}
        for number, name in enumerate(edges.edge_types):
            indptr, indices = edges.part(number)
            # pyg-lib reads offsets, indices and seeds of one type.
            narrow = with_pyg_lib and indptr[-1] <= np.iinfo(np.int32).max
            dtype = indices.dtype if narrow else np.dtype(np.int64)
            tensors = (
                torch.from_numpy(part.astype(dtype, copy=False)) for part in (indices, indptr)
            )
            size = edges.num_nodes[name[0]], edges.num_nodes[name[2]]
            graph.put_edge_index(tuple(tensors), name if has_types else None, "csc", size=size)
    return graph


@contextmanager
def _repeatable(*key: int) -> Iterator[None]:
    """Seed torch's CPU generator by `key`, and keep torch to one thread; restore both after.

    pyg-lib's threads draw from one generator, in any order.
    """
    seed = np.random.SeedSequence([part % 2**64 for part in key]).generate_state(1, np.uint64)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed[0]))
            yield
    finally:
        torch.set_num_threads(num_threads)
