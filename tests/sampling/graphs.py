"""Graphs to sample from, and what samples drew from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.data.graph import EDGE, NODE, Edges, EdgeType, FusedCSC, Int64Array, NodeType
from gnntrain.sampling.base import NO_TARGETS, FanOuts, Sampler, Seeds
from gnntrain.sampling.block import Block, Sample
from gnntrain.sampling.cpu import CPUSampler
from tests.data import oracles
from tests.hetero_graphs import hetero_graph

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


def of_one_type(edges: CSC) -> FusedCSC:
    return FusedCSC.cut([EDGE], {NODE: len(edges[0]) - 1}, [len(edges[1])], *edges)


EACH_GRAPH = {"one type": of_one_type(random_csc(500, 9000)), "typed": hetero_graph().fused}
on_each_graph = pytest.mark.parametrize("graph", EACH_GRAPH.values(), ids=EACH_GRAPH)
each_scope = pytest.mark.parametrize("scope", ["relation", "node"])


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 25, max_edges: int = 120) -> CSC:
    """Graphs of one type with isolated nodes, self loops, duplicate edges and, at times, a hub."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    if draw(st.booleans()):
        edges += [(source, 0) for source in draw(st.lists(node, max_size=max_edges))]
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    return csc(num_nodes, src, dst, draw(st.sampled_from([np.int32, np.int64])))


@st.composite
def typed_graphs(draw: st.DrawFn) -> FusedCSC:
    """Graphs of one to three node types; a third of one type with more edges."""
    if draw(st.integers(0, 2)) == 0:
        return of_one_type(draw(graphs()))
    data = draw(oracles.typed_graphs())
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    edges = {name: Edges(*csc(sizes[name[2]], *ends)) for name, ends in data.edges.items()}
    return FusedCSC.of(edges, sizes)


def target_of(graph: FusedCSC) -> NodeType:
    """The type of the seeds: the first."""
    return next(iter(graph.num_nodes))


def seeds_of(nodes: Tensor | Sequence[int], graph: FusedCSC | None = None) -> Seeds:
    """Of a graph's target type; without one of the only type."""
    ids = nodes if isinstance(nodes, Tensor) else torch.tensor(nodes, dtype=torch.int64)
    return Seeds({NODE if graph is None else target_of(graph): ids}, NO_TARGETS)


def some_seeds(graph: FusedCSC, *, unique: bool = False) -> st.SearchStrategy[list[int]]:
    last = graph.num_nodes[target_of(graph)] - 1
    return st.lists(st.integers(0, last), max_size=8, unique=unique)


@st.composite
def some_fan_outs(draw: st.DrawFn, graph: FusedCSC, scope: str = "relation") -> FanOuts:
    """Fan-outs of one to three hops, shared where the scope says so."""
    num_hops = draw(st.integers(1, 3))
    hops = st.lists(st.sampled_from([-1, 1, 2, 5, 30]), min_size=num_hops, max_size=num_hops)
    owners = {name: name if scope == "relation" else name[2] for name in graph.edge_types}
    drawn = {owner: tuple(draw(hops)) for owner in dict.fromkeys(owners.values())}
    return {name: drawn[owner] for name, owner in owners.items()}


def fan_outs_of(graph: FusedCSC, fan_outs: Sequence[int] | FanOuts) -> FanOuts:
    if isinstance(fan_outs, Mapping):
        return fan_outs
    return dict.fromkeys(graph.edge_types, tuple(fan_outs))


def sampler_of(
    graph: FusedCSC,
    fan_outs: Sequence[int] | FanOuts,
    kind: type[Sampler] = CPUSampler,
    **options: Any,
) -> Sampler:
    """A sampler; one list of fan-outs is for all edge types."""
    return kind(graph, fan_outs_of(graph, fan_outs), **options)


def cpu_sampler(graph: CSC, fan_outs: Sequence[int], **options: Any) -> Sampler:
    return sampler_of(of_one_type(graph), fan_outs, **options)


def blocks_of(sample: Sample) -> list[Block]:
    """Of a graph of one type: the blocks, that of the seeds first."""
    return [hop.edges[EDGE] for hop in reversed(sample.hops)]


def in_edges(sample: Sample) -> list[dict[tuple[EdgeType, int], list[int]]]:
    """By hop, that of the seeds first: each destination's drawn sources, all by their ids."""
    hops: list[dict[tuple[EdgeType, int], list[int]]] = []
    for hop in reversed(sample.hops):
        hops.append({})
        for name, block in hop.edges.items():
            sources = sample.nodes[name[0]][block.indices].tolist()
            destinations = sample.nodes[name[2]][: block.num_dst].tolist()
            ends = pairwise(block.indptr.tolist())
            for node, (begin, end) in zip(destinations, ends, strict=True):
                hops[-1][name, node] = sources[begin:end]
    return hops


def assert_equal(
    found: Sample, expected: Sample, originals: Mapping[NodeType, Int64Array] | None = None
) -> None:
    """Equal samples, wherever they lie.

    Args:
        found: Has no edge ids where the graph lies in parts.
        expected: Of the whole graph, in host memory.
        originals: Of a graph in parts: the ids before the partition.
    """
    assert found.num_seeds == expected.num_seeds
    assert list(found.nodes) == list(expected.nodes)
    for name, nodes in found.nodes.items():
        ids = nodes.cpu().numpy()
        assert nodes.dtype == expected.nodes[name].dtype
        np.testing.assert_array_equal(
            ids if originals is None else originals[name][ids], expected.nodes[name]
        )
    assert found.num_sampled_nodes == expected.num_sampled_nodes
    assert found.num_sampled_edges == expected.num_sampled_edges
    fields = ("indptr", "indices") if originals else ("indptr", "indices", "edge_ids")
    for hop, wanted in zip(found.hops, expected.hops, strict=True):
        assert (hop.num_dst, hop.num_src) == (wanted.num_dst, wanted.num_src)
        assert list(hop.edges) == list(wanted.edges)
        for edge_type, block in hop.edges.items():
            other = wanted.edges[edge_type]
            assert (block.num_src, block.max_in_edges) == (other.num_src, other.max_in_edges)
            for field in fields:
                left, right = getattr(block, field), getattr(other, field)
                assert (left is None) == (right is None)
                if left is not None:
                    assert left.dtype == right.dtype
                    assert torch.equal(left.cpu(), right), field
