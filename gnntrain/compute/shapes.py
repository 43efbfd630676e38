"""What the operators return, without computing it: for `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum


def gather(*arguments: Any) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions here."""
    *given, start, stop, dtype = arguments
    features = LazyFeatures(*given)
    return features.rows.new_empty(stop - start, features.num_features, dtype=dtype)


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    return indices.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)


def aggregate(*arguments: Any) -> Tensor:
    features, total, root = arguments[0], Sum(*arguments[6:-2]), arguments[-2]
    width = features.shape[1]
    across = {"none": width, "beside": 2 * width, "added": width // 2}[root]
    size, device = (total.num_dst, across), total.indptr.device
    out: Tensor = features.new_empty(size, dtype=arguments[-1], device=device)
    return out


def edge_products(rows: Tensor, grad: Tensor, *arguments: Any) -> Tensor:  # noqa: ARG001
    weight = Sum(*arguments).edge_weight
    assert weight is not None
    return torch.empty_like(weight)


def aggregate_max(*arguments: Any) -> tuple[Tensor, Tensor]:
    rows, indptr, dtype, count = arguments[0], arguments[6], arguments[-2], arguments[-1]
    out = rows.new_empty(len(indptr) - 1, rows.shape[1], dtype=dtype, device=indptr.device)
    return out, out.new_empty(out.shape if count else (0, 0), dtype=torch.int32)


def aggregate_max_backward(grad: Tensor, rows: Tensor, *_: Any) -> Tensor:  # noqa: ARG001
    return torch.empty_like(rows)


def aggregate_linear(*arguments: Any) -> tuple[Tensor, Tensor]:
    weight, keep, num_dst = arguments[-5], arguments[-1], Sum(*arguments[6:-5]).num_dst
    out = weight.new_empty(num_dst, weight.shape[0])
    return out, weight.new_empty(num_dst if keep else 0, weight.shape[1])


def aggregate_linear_backward(
    grad: Tensor,  # noqa: ARG001
    weight: Tensor,
    inputs: Tensor,
    out: Tensor | None,  # noqa: ARG001
    dropout: float | None,  # noqa: ARG001
    dtype: torch.dtype,
    needs_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_inputs = torch.empty_like(inputs) if needs_inputs else inputs.new_empty(0)
    grad_weight = torch.empty_like(weight, dtype=dtype)
    return grad_inputs, grad_weight, weight.new_empty(len(weight), dtype=dtype)


def edge_softmax(*arguments: Any) -> tuple[Tensor, Tensor]:
    loop_score, indices = arguments[2], arguments[6]
    return loop_score.new_empty(len(indices), loop_score.shape[1]), torch.empty_like(loop_score)


def edge_softmax_backward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(arguments[2]), torch.empty_like(arguments[3])


def pair_scores(left: Tensor, right: Tensor, att: Tensor, *arguments: Any) -> Tensor:  # noqa: ARG001
    return att.new_empty(len(arguments[2]), len(att))


def pair_scores_backward(
    grad: Tensor,  # noqa: ARG001
    left: Tensor,
    right: Tensor,
    att: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(left), torch.empty_like(right), torch.empty_like(att)


def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    draws_key = x.device.type == "cpu" and x.dtype != torch.float16
    state = x.new_empty((), dtype=torch.int64) if draws_key else torch.empty_like(x).bool()
    return out, state


def dropout_backward(grad: Tensor, state: Tensor, p: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(grad, memory_format=torch.contiguous_format)
