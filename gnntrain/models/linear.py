"""Sums of linear maps of aggregates, of all relations of a layer at once, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.products import product_type
from gnntrain.models.aggregate import Aggregation, source_gradient

_ALL = slice(None)


class LinearTerm(NamedTuple):
    """weight · aggregate over the in-edges of one relation.

    Attributes:
        source: Place of the aggregated rows in the list of rows.
        aggregation: A sum or mean.
        weight: `[O, F]`; gradients flow.
        columns: The F columns of the rows that are aggregated.
    """

    source: int
    aggregation: Aggregation
    weight: Tensor
    columns: slice = _ALL


class LinearSum(NamedTuple):
    """Σ terms + root_weight · own row + bias, for the destinations of one type.

    Attributes:
        terms: One for each relation.
        own: Place of the destinations' rows in the list of rows, whose first they are (in a block
            of a single term, those from `dst_offset` on).
        num_dst: Number of destinations.
        root_weight: `[O, F]`; gradients flow. None, of a single term alone: 0.
        bias: `[O]`; gradients flow.
        columns: The columns of the own rows that are read.
    """

    terms: Sequence[LinearTerm]
    own: int
    num_dst: int
    root_weight: Tensor | None
    bias: Tensor
    columns: slice = _ALL

    @property
    def parameters(self) -> list[Tensor | None]:
        return [self.bias, self.root_weight, *(term.weight for term in self.terms)]


Rows = Tensor | LazyFeatures | tuple[LazyFeatures, Tensor]
"""Rows; lazy ones may come with the tensor that takes their gradient."""


def linear_sums(
    rows: Sequence[Rows], parts: Sequence[LinearSum], dropout: float | None = None
) -> tuple[Tensor, ...]:
    """The rows of the destinations of each part, in autocast's type, or else that of the weights.

    A single part with one term of the same type's rows is one operator, forward and backward.

    Args:
        rows: float `[num_src, F]` of several node types; gradients flow to the tensors.
        parts: Their sums, by destination type.
        dropout: Of such a single part alone: probability of the dropout after a ReLU; None: neither
            follows.
    """
    pairs = [_features_and_tensor(one) for one in rows]
    dtype = autocast_type(parts[0].bias.device, parts[0].bias.dtype)
    part = parts[0]
    if len(parts) == len(part.terms) == 1 and (term := part.terms[0]).source == part.own:
        features, tensor = pairs[part.own]
        if term.columns == part.columns == _ALL:
            linear = term.weight, part.root_weight, part.bias
            return (_one_sum(tensor, *linear, dtype, features, term.aggregation, dropout),)
    if part.bias.device.type == "cpu":
        dtype = product_type(dtype)
    features_of, tensors = zip(*pairs, strict=True)
    parameters = [tensor for part in parts for tensor in part.parameters]
    return _sums(features_of, tuple(parts), dtype, *tensors, *parameters)


def autocast_type(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """Autocast's type on this device; without autocast `otherwise`."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


def _features_and_tensor(rows: Rows) -> tuple[LazyFeatures, Tensor | None]:
    if isinstance(rows, Tensor):
        return LazyFeatures.of(rows.detach()), rows
    return rows if isinstance(rows, tuple) else (rows, None)


class _OneSum(torch.autograd.Function):
    """Saves the aggregate and the result; its positive numbers are the mask of ReLU and dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        neighbour_weight: Tensor,
        root_weight: Tensor | None,
        bias: Tensor,
        dtype: torch.dtype,
        features: LazyFeatures,
        aggregation: Aggregation,
        dropout: float | None,
    ) -> Tensor:
        has_root = root_weight is not None
        parts = (neighbour_weight,) if root_weight is None else (neighbour_weight, root_weight)
        weight = torch.cat(parts, dim=1).to(dtype)
        out, inputs = ops.aggregate_linear(
            *features.arguments(),
            *aggregation.sum(features.rows.dtype, dtype),
            weight,
            bias.to(dtype),
            has_root,
            dropout,
            any(ctx.needs_input_grad),
        )
        ctx.save_for_backward(weight, inputs, None if dropout is None else out)
        ctx.aggregation, ctx.has_root, ctx.dropout = aggregation, has_root, dropout
        ctx.row_type = None if rows is None else rows.dtype
        ctx.weight_type = neighbour_weight.dtype
        return out  # type: ignore[no-any-return]  # operators have no types

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_rows, aggregation = ctx.needs_input_grad[0], ctx.aggregation
        grad_inputs, grad_weight, grad_bias = ops.aggregate_linear_backward(
            grad, *ctx.saved_tensors, ctx.dropout, ctx.weight_type, needs_rows
        )
        grad_rows = None
        if needs_rows:
            grad_rows = source_gradient(grad_inputs, aggregation, ctx.row_type, ctx.has_root)
        grads: list[Tensor | None] = [grad_weight, None]
        if ctx.has_root:  # contiguous, as DDP requires of gradients
            grads = [part.contiguous() for part in grad_weight.chunk(2, dim=1)]
        return grad_rows, *grads, grad_bias, None, None, None, None


class _Sums(torch.autograd.Function):
    """The gradient of a node type's rows is one matrix; all that read them add to it in place."""

    @staticmethod
    def forward(
        ctx: Any,
        features: tuple[LazyFeatures, ...],
        parts: tuple[LinearSum, ...],
        dtype: torch.dtype,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        parameters, saved, outputs = iter(tensors[len(features) :]), [], []
        for part in parts:
            bias, *weights = [next(parameters).to(dtype) for _ in part.parameters]  # type: ignore[union-attr]
            inputs = [features[part.own].columns(part.columns).read(0, part.num_dst, dtype)]
            for term in part.terms:
                given = features[term.source]
                total = term.aggregation.sum(given.rows.dtype, dtype)
                given_to = given.columns(term.columns).arguments()
                inputs.append(ops.aggregate(*given_to, *total, "none", dtype))
            out = torch.addmm(bias, inputs[0], weights[0].t())
            for aggregates, weight in zip(inputs[1:], weights[1:], strict=True):
                out.addmm_(aggregates, weight.t())
            outputs.append(out)
            saved += [*inputs, *weights]
        ctx.save_for_backward(*saved)
        ctx.parts = parts
        ctx.shapes = [(len(given), given.num_features) for given in features]
        ctx.types = [None if tensor is None else tensor.dtype for tensor in tensors]
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, needs = iter(ctx.saved_tensors), ctx.needs_input_grad[3:]
        types, num_sources = ctx.types, len(ctx.shapes)
        owns: list[list[tuple[Tensor, slice]]] = [[] for _ in range(num_sources)]
        aggregates: list[list[tuple[LinearTerm, Tensor]]] = [[] for _ in range(num_sources)]
        found: list[Tensor] = []
        for part, grad in zip(ctx.parts, grads, strict=True):
            inputs, weights = ([next(saved) for _ in range(len(part.terms) + 1)] for _ in range(2))
            found.append(grad.sum(0))
            found += [grad.t() @ given for given in inputs]
            if needs[part.own]:
                owns[part.own].append((grad @ weights[0], part.columns))
            for term, weight in zip(part.terms, weights[1:], strict=True):
                if needs[term.source]:
                    aggregates[term.source].append((term, grad @ weight))
        rows = [
            _row_gradient(ctx.shapes[i], owns[i], aggregates[i], types[i]) if needs[i] else None
            for i in range(num_sources)
        ]
        weights = [one.to(dtype) for one, dtype in zip(found, types[num_sources:], strict=True)]
        return None, None, None, *rows, *weights


def _row_gradient(
    shape: tuple[int, int],
    owns: Sequence[tuple[Tensor, slice]],
    aggregates: Sequence[tuple[LinearTerm, Tensor]],
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the rows of one type.

    Args:
        shape: Of the rows.
        owns: Gradients of some columns of the first rows, from the destinations' own terms.
        aggregates: Gradients of the aggregates of each relation.
        dtype: Type of the result.
    """
    out: Tensor | None = None
    for term, grad in aggregates:
        if term.aggregation.block.num_edges == 0:
            continue
        found = source_gradient(grad, term.aggregation, dtype)
        if out is None:
            out = found if found.shape == shape else found.new_zeros(shape)
        if out is not found:
            out[:, term.columns] += found
    if out is None:
        like, *_ = *(grad for grad, _ in owns), *(grad for _, grad in aggregates)
        out = like.new_zeros(shape, dtype=dtype)
    for grad, columns in owns:
        out[: len(grad), columns] += grad
    return out


_one_sum: Callable[..., Tensor] = _OneSum.apply
_sums: Callable[..., tuple[Tensor, ...]] = _Sums.apply
