"""The shapes and types of the operators' results (fake kernels), for `torch.compile`."""

# ruff: noqa: ARG001
# Most arguments do not affect the result's shape.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions here."""
    return features.rows.new_empty(stop - start, features.num_features, dtype=dtype)


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    return indices.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    width = features.num_features
    across = {"none": width, "beside": 2 * width, "added": width // 2}[root]
    return torch.empty(total.num_dst, across, dtype=dtype, device=total.indptr.device)


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    assert total.edge_weight is not None
    return torch.empty_like(total.edge_weight)


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    size = edges.num_dst, features.num_features
    out = torch.empty(size, dtype=dtype, device=edges.indptr.device)
    return out, out.new_empty(out.shape if count else (0, 0), dtype=torch.int32)


def aggregate_max_backward(grad: Tensor, rows: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(rows)


def aggregate_linear(
    features: LazyFeatures,
    total: Sum,
    weight: Tensor,
    bias: Tensor,
    has_root: bool,
    dropout: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    num_dst = total.num_dst
    out = weight.new_empty(num_dst, weight.shape[0])
    return out, weight.new_empty(num_dst if keep else 0, weight.shape[1])


def aggregate_linear_backward(
    grad: Tensor,
    weight: Tensor,
    inputs: Tensor,
    out: Tensor | None,
    dropout: float | None,
    dtype: torch.dtype,
    needs_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_inputs = torch.empty_like(inputs) if needs_inputs else inputs.new_empty(0)
    grad_weight = torch.empty_like(weight, dtype=dtype)
    return grad_inputs, grad_weight, weight.new_empty(len(weight), dtype=dtype)


def edge_softmax(
    score: Tensor,
    target: Tensor | None,
    loop_score: Tensor | None,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    heads = score.shape[1]
    return score.new_empty(len(edges.indices), heads), score.new_empty(edges.num_dst, heads)


def edge_softmax_backward(
    grad: Tensor,
    loop_grad: Tensor,
    alpha: Tensor,
    loop_alpha: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(alpha), torch.empty_like(loop_alpha)


def pair_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
) -> Tensor:
    return att.new_empty(len(edges.indices), len(att))


def pair_scores_backward(
    grad: Tensor,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(left), torch.empty_like(right), torch.empty_like(att)


def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return out, x.new_empty((), dtype=torch.int64)


def dropout_backward(grad: Tensor, key: Tensor, p: float) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def adam_rows(weight: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *rest: Any) -> None:
    """The matrices are changed in place."""
