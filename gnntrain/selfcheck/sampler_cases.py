"""The sampler on the GPU beside the CPU's: for one key, equal tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.selection import SAMPLER
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler
from gnntrain.selfcheck.case import Case, WrongResultError

_KEYS = [SampleKey(1, 2, step) for step in range(2)]  # the second draw finds the first one's traces
_NUM_NODES, _NUM_EDGES = 300, 3000


class _Draws(NamedTuple):
    """A way to draw: `padded` without learning the sizes, as in a CUDA graph."""

    fan_outs: Sequence[int]
    replace: bool = False
    padded: bool = False
    index_type: torch.dtype = torch.int32


_DRAWS = {
    "fan-outs 4, 3": _Draws([4, 3]),
    "fan-outs 65, 2": _Draws([65, 2], index_type=torch.int64),
    "all in-neighbours": _Draws([-1, 2]),
    "with replacement": _Draws([3, 2], replace=True),
    "padded": _Draws([3, 2], padded=True),
    "padded, fan-out 65": _Draws([65], padded=True),
}


def sampler_cases() -> Iterator[Case]:
    """Of every kernel of the sampler."""
    for options, draws in _DRAWS.items():
        yield Case(SAMPLER, options, None, partial(_tried, draws))


def _tried(draws: _Draws, device: torch.device) -> float:
    graph = _graph(draws.index_type)
    seeds = torch.arange(0, _NUM_NODES, 14)
    expected, found = _samplers(graph, draws, device)
    for key in _KEYS:
        wanted = expected.sample(Seeds({NODE: seeds}, NO_TARGETS), key)
        if draws.padded:
            keys = found.hop_keys(key).to(device)
            _check_padded(found.sample_padded(seeds.to(device), keys), wanted)
        else:
            _check_equal(found.sample(Seeds({NODE: seeds}, NO_TARGETS), key), wanted)
    return 0.0


def _graph(index: torch.dtype) -> FusedCSC:
    """In-edges: a tenth of all into node 0, none into the last nodes."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, _NUM_NODES - _NUM_NODES // 10, (2, _NUM_EDGES), generator=draw)
    ends[0, : _NUM_EDGES // 10] = 0
    counts = torch.bincount(ends[0], minlength=_NUM_NODES)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).numpy()
    indices = ends[1].to(index).numpy()
    return FusedCSC.cut([EDGE], {NODE: _NUM_NODES}, [_NUM_EDGES], indptr, indices)


def _samplers(graph: FusedCSC, draws: _Draws, device: torch.device) -> tuple[Sampler, Any]:
    from gnntrain.sampling.gpu import GPUSampler  # imports Triton

    fan_outs = {EDGE: tuple(draws.fan_outs)}
    options: dict[str, Any] = {"replace": draws.replace, "edge_ids": True}
    indptr, indices = (torch.from_numpy(own).to(device) for own in (graph.indptr, graph.indices))
    placed = replace(graph, indptr=indptr, indices=indices)
    return CPUSampler(graph, fan_outs, **options), GPUSampler(placed, fan_outs, **options)


def _check_equal(found: Sample, wanted: Sample) -> None:
    _refuse_other("nodes", found.nodes[NODE], wanted.nodes[NODE])
    counts = [(x.num_seeds, x.num_sampled_nodes, x.num_sampled_edges) for x in (found, wanted)]
    if counts[0] != counts[1]:
        raise WrongResultError(f"{counts[0]} nodes and edges instead of {counts[1]}")
    for one, other in zip(found.hops, wanted.hops, strict=True):
        for name, tensor in other.edges[EDGE].tensors.items():
            _refuse_other(name, getattr(one.edges[EDGE], name), tensor)


def _check_padded(found: Sample, wanted: Sample) -> None:
    """Check that the tensors begin with what is wanted, and that the rest is 0, without edges."""
    _refuse_longer("nodes", found.nodes[NODE], wanted.nodes[NODE], 0)
    for hop, expected in zip(found.hops, wanted.hops, strict=True):
        one, other = hop.edges[EDGE], expected.edges[EDGE]
        assert one.edge_ids is not None
        assert other.edge_ids is not None
        _refuse_longer("indptr", one.indptr, other.indptr, other.num_edges)
        _refuse_longer("indices", one.indices, other.indices, 0)
        _refuse_longer("edge_ids", one.edge_ids, other.edge_ids, 0)


def _refuse_other(name: str, found: Tensor, wanted: Tensor) -> None:
    if found.dtype != wanted.dtype or not torch.equal(found.cpu(), wanted):
        raise WrongResultError(f"other {name} than the CPU's sampler draws")


def _refuse_longer(name: str, found: Tensor, wanted: Tensor, fill: int) -> None:
    _refuse_other(name, found[: len(wanted)], wanted)
    if bool((found[len(wanted) :] != fill).any()):
        raise WrongResultError(f"the padding of {name} is not {fill}")
