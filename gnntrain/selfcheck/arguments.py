"""The arguments with which models call each operator that has a kernel for GPUs, on any block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum
from gnntrain.models.aggregate import Aggregation
from gnntrain.sampling.block import Block

SLOPE = 0.2


class Inputs:
    """Random inputs for a block, on the CPU.

    Args:
        block: The block.
        dtype: Of rows of features and activations.
    """

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        self.block = block
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(1)

    def rows(self, number: int, width: int) -> Tensor:
        """Normal numbers `[number, width]`."""
        return self.exact(number, width).to(self.dtype)

    def exact(self, *shape: int) -> Tensor:
        """The same in the type of factors and attention scores, float32."""
        return torch.randn(shape, generator=self._generator)

    def integers(self, number: int, width: int) -> Tensor:
        """Rows of a few distinct numbers, among which maxima tie."""
        shape = number, width
        return torch.randint(-2, 3, shape, generator=self._generator).to(self.dtype)

    def nodes(self, number: int) -> Tensor:
        return torch.randint(0, number, (self.block.num_src,), generator=self._generator)

    @property
    def edges(self) -> Edges:
        block = self.block
        return Edges(block.indptr, block.indices, block.max_in_edges)

    def scaled_mean(self) -> Aggregation:
        """A mean with every factor that there may be."""
        block = self.block
        sizes = block.num_edges, block.num_src, block.num_dst, block.num_dst
        weight, source_scale, scale, loop = map(self.exact, sizes)
        return Aggregation(block, "mean", weight, source_scale, scale, loop, skip_loops=True)

    @property
    def num_own(self) -> int:
        """Rows of the sources, and of the destinations, which are sources too."""
        return max(self.block.num_src, self.block.dst_offset + self.block.num_dst)


Arguments = tuple[Any, ...]
Form = Callable[[Inputs], Arguments]


def _read(given: Inputs) -> Arguments:
    rows = given.rows(70, 136)
    nodes = given.nodes(len(rows))
    return LazyFeatures(rows, nodes), len(nodes) // 3, len(nodes), torch.float32


def _mean_beside_own(given: Inputs) -> Arguments:
    """SAGE's first layer."""
    rows = given.rows(given.num_own + 9, 136)
    nodes = torch.arange(len(rows)).flip(0)[: given.num_own].contiguous()
    total = Aggregation(given.block, "mean").sum(None)
    return LazyFeatures(rows, nodes), total, "beside", given.dtype


def _sum(given: Inputs) -> Arguments:
    total = Aggregation(given.block).sum(None)
    return LazyFeatures(given.rows(given.num_own, 5)), total, "none", given.dtype


def _all_factors(given: Inputs) -> Arguments:
    aggregation = given.scaled_mean()
    total = aggregation.sum(aggregation.weight)
    return LazyFeatures(given.rows(given.num_own, 47)), total, "none", given.dtype


def _heads(given: Inputs) -> Arguments:
    heads = 3 if given.block.num_edges < 10**5 else 4
    weight = given.exact(given.block.num_edges, heads)
    total = Aggregation(given.block).sum(weight)
    return LazyFeatures(given.rows(given.num_own, 15)), total, "none", given.dtype


def _gradient(given: Inputs) -> Arguments:
    """Of the sources of a scaled mean."""
    aggregation = given.scaled_mean()
    rows = given.rows(given.block.num_dst, 47)
    return LazyFeatures(rows), aggregation.transposed(aggregation.weight), "none", given.dtype


def _gradient_with_own(given: Inputs) -> Arguments:
    """Of the sources of SAGE's layer."""
    total = Aggregation(given.block, "mean").transposed(None)
    rows = given.rows(given.block.num_dst, 2 * 24)
    return LazyFeatures(rows), total, "added", given.dtype


def _rows_by_edge(given: Inputs) -> Arguments:
    """The gradient of a destination's part of attention scores."""
    block = given.block
    total = Sum(block.indptr, None, max_in_edges=block.max_in_edges)
    return LazyFeatures(given.rows(block.num_edges, 3)), total, "none", given.dtype


def _weight_gradient(given: Inputs) -> Arguments:
    aggregation = given.scaled_mean()
    rows, grad = given.rows(given.num_own, 47), given.rows(given.block.num_dst, 47)
    return rows, grad, aggregation.sum(aggregation.weight)


def _head_weight_gradient(given: Inputs) -> Arguments:
    features, total, _, _ = _heads(given)
    return features.rows, given.rows(given.block.num_dst, 15), total


def _maximum(given: Inputs) -> Arguments:
    return LazyFeatures(given.integers(given.num_own, 21)), given.edges, given.dtype, True


def _maximum_of_features(given: Inputs) -> Arguments:
    rows = given.rows(70, 136)
    return LazyFeatures(rows, given.nodes(len(rows))), given.edges, torch.float32, False


def _maximum_gradient(given: Inputs) -> Arguments:
    features, edges, dtype, _ = _maximum(given)
    out, ties = reference.aggregate_max(features, edges, dtype, count=True)
    back = given.block.transposed()
    grad = given.rows(given.block.num_dst, 21)
    return grad, features.rows, out, ties, back.indptr, back.indices


def _softmax(given: Inputs) -> Arguments:
    block = given.block
    score, loop_score = given.exact(block.num_edges, 3), given.exact(block.num_dst, 3)
    return score, None, loop_score, 1.0, block.dst_offset, given.edges


def _softmax_of_sums(given: Inputs) -> Arguments:
    block = given.block
    source, target, loop_score = (
        given.exact(number, 4) for number in (given.num_own, block.num_dst, block.num_dst)
    )
    return source, target, loop_score, SLOPE, block.dst_offset, given.edges


def _softmax_without_loops(given: Inputs) -> Arguments:
    """HGT's."""
    score, target, _, slope, dst_offset, edges = _softmax(given)
    return score, target, None, slope, dst_offset, edges


def _gradient_of(form: Form) -> Form:
    def arguments(given: Inputs) -> Arguments:
        score, target, loop_score, slope, dst_offset, edges = form(given)
        weights = reference.edge_softmax(score, target, loop_score, slope, dst_offset, edges)
        grads = (given.exact(*part.shape) for part in weights)
        return *grads, *weights, score if target is not None else None, target, slope, edges

    return arguments


def _pairs(given: Inputs) -> Arguments:
    left, right = given.rows(given.num_own, 15), given.rows(given.block.num_dst, 15)
    heads = 3 if left.shape[1] % 3 == 0 else 4
    att = given.exact(heads, left.shape[1] // heads).to(given.dtype)
    return left, right, att, SLOPE, given.edges


def _pairs_gradient(given: Inputs) -> Arguments:
    left, right, att, slope, edges = _pairs(given)
    grad = given.exact(len(edges.indices), len(att)).to(given.dtype)
    back = given.block.transposed()
    out_edges = back.indptr, back.indices, back.edge_ids
    return grad, left, right, att, slope, edges, *out_edges


FORMS: dict[str, dict[str, Form]] = {
    "gather": {"selected rows": _read},
    "aggregate": {
        "mean, own rows": _mean_beside_own,
        "sum": _sum,
        "all factors": _all_factors,
        "heads": _heads,
        "gradient": _gradient,
        "gradient with own rows": _gradient_with_own,
        "rows by edge": _rows_by_edge,
    },
    "edge_products": {"all factors": _weight_gradient, "heads": _head_weight_gradient},
    "aggregate_max": {"ties": _maximum, "selected rows": _maximum_of_features},
    "aggregate_max_backward": {"ties": _maximum_gradient},
    "edge_softmax": {
        "scores by edge": _softmax,
        "scores by node": _softmax_of_sums,
        "no extra loops": _softmax_without_loops,
    },
    "edge_softmax_backward": {
        "scores by edge": _gradient_of(_softmax),
        "scores by node": _gradient_of(_softmax_of_sums),
    },
    "pair_scores": {"heads": _pairs},
    "pair_scores_backward": {"heads": _pairs_gradient},
}
"""By operator and options: the arguments of its functions in `reference` and `cuda`."""

FLOAT32_ALONE = {"edge_softmax", "edge_softmax_backward"}
"""Operators that models call in float32 whatever the precision, see `models.attention`."""
