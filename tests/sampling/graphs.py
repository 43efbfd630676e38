"""In-neighbour CSCs to sample from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

from gnntrain.sampling.base import Int64Array, SampledSubgraph
from gnntrain.sampling.cpu import CPUSampler

CSC = tuple[Int64Array, npt.NDArray[np.int32] | Int64Array]


def csc(num_nodes: int, src: npt.ArrayLike, dst: npt.ArrayLike, dtype: type = np.int32) -> CSC:
    """In-edges of each node, in the order given."""
    sources, destinations = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(destinations, minlength=num_nodes), out=indptr[1:])
    return indptr, sources[np.argsort(destinations, kind="stable")].astype(dtype)


def random_csc(num_nodes: int, num_edges: int, seed: int = 0) -> CSC:
    """Random edges, a tenth of them into node 0; the last tenth of the nodes is isolated."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes - num_nodes // 10, (2, num_edges))
    dst[: num_edges // 10] = 0
    return csc(num_nodes, src, dst)


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 25, max_edges: int = 120) -> CSC:
    """Graphs with isolated nodes, self loops, duplicate edges and, at times, a hub."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    if draw(st.booleans()):
        edges += [(source, 0) for source in draw(st.lists(node, max_size=max_edges))]
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    return csc(num_nodes, src, dst, draw(st.sampled_from([np.int32, np.int64])))


def cpu_sampler(graph: CSC, fan_outs: Sequence[int], **options: Any) -> CPUSampler:
    indptr, indices = (torch.from_numpy(array) for array in graph)
    return CPUSampler(indptr, indices, fan_outs, **options)


def global_in_edges(subgraph: SampledSubgraph) -> list[dict[int, list[int]]]:
    """For each hop: destination node -> its drawn source nodes, all in global ids."""
    hops = []
    for block in reversed(subgraph.blocks):
        sources = subgraph.nodes[block.indices].tolist()
        ends = block.indptr.tolist()
        destinations = subgraph.nodes[: block.num_dst].tolist()
        hops.append({v: sources[ends[i] : ends[i + 1]] for i, v in enumerate(destinations)})
    return hops
