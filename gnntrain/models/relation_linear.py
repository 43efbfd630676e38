"""A layer that sums linear maps of aggregates, of all relations at once, with gradients.

The gradient of a node type's rows is one matrix, to which the relations that read these rows and
the rows' own term are added in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, source_gradient
from gnntrain.models.aggregate_linear import autocast_type


@dataclass(frozen=True, slots=True)
class RelationTerm:
    """weight · aggregate over the in-edges of one relation.

    Attributes:
        source: Place of the aggregated rows in the list of rows.
        aggregation: A sum or mean, without edge weights.
        weight: `[O, F]`; gradients flow.
        columns: The F columns of the rows that are aggregated.
    """

    source: int
    aggregation: Aggregation
    weight: Tensor
    columns: slice = field(default_factory=lambda: slice(None))


@dataclass(frozen=True, slots=True)
class RelationLinear:
    """Σ terms + root_weight · own row + bias, for the destinations of one type.

    Attributes:
        terms: One for each relation.
        own: Place of the destinations' rows in the list of rows, whose first they are.
        num_dst: Number of destinations.
        root_weight: `[O, F]`; gradients flow.
        bias: `[O]`; gradients flow.
        columns: The columns of the own rows that are read.
    """

    terms: Sequence[RelationTerm]
    own: int
    num_dst: int
    root_weight: Tensor
    bias: Tensor
    columns: slice = field(default_factory=lambda: slice(None))

    @property
    def parameters(self) -> list[Tensor]:
        return [self.bias, self.root_weight, *(term.weight for term in self.terms)]


Rows = Tensor | LazyFeatures | tuple[LazyFeatures, Tensor]
"""Rows; lazy ones may come with the tensor that takes their gradient."""


def relation_linear(rows: Sequence[Rows], parts: Sequence[RelationLinear]) -> tuple[Tensor, ...]:
    """The rows of the destinations of each part, in autocast's type, or else that of the weights.

    Args:
        rows: float `[num_src, F]` of several node types; gradients flow to the tensors.
        parts: What is computed, by destination type.
    """
    features, tensors = zip(*map(_features_and_tensor, rows), strict=True)
    parameters = [tensor for part in parts for tensor in part.parameters]
    dtype = autocast_type(parameters[0].device, parameters[0].dtype)
    return _relation_linear(features, tuple(parts), dtype, *tensors, *parameters)


def _features_and_tensor(rows: Rows) -> tuple[LazyFeatures, Tensor | None]:
    if isinstance(rows, Tensor):
        return LazyFeatures.of(rows.detach()), rows
    return rows if isinstance(rows, tuple) else (rows, None)


class _RelationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: tuple[LazyFeatures, ...],
        parts: tuple[RelationLinear, ...],
        dtype: torch.dtype,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        parameters, saved, outputs = iter(tensors[len(features) :]), [], []
        for part in parts:
            bias, *weights = [next(parameters).to(dtype) for _ in part.parameters]  # type: ignore[union-attr]
            inputs = [features[part.own].columns(part.columns).read(0, part.num_dst, dtype)]
            for term in part.terms:
                given, total = features[term.source], term.aggregation.sum(None)
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
        aggregates: list[list[tuple[RelationTerm, Tensor]]] = [[] for _ in range(num_sources)]
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
    aggregates: Sequence[tuple[RelationTerm, Tensor]],
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
        found = source_gradient(grad, term.aggregation, None, dtype)
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


_relation_linear: Callable[..., tuple[Tensor, ...]] = _RelationLinear.apply
