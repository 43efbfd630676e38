"""Sums of linear maps of aggregates, of all relations of a layer at once, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum
from gnntrain.compute.products import product_type
from gnntrain.models.aggregate import source_gradient
from gnntrain.sampling.block import Block

_ALL = slice(None)


class LinearTerm(NamedTuple):
    """weight · aggregate over the in-edges of one relation.

    Attributes:
        source: Place of the aggregated rows in the list of rows.
        block: The in-edges.
        total: The sum over them.
        weight: `[O, F]`; gradients flow.
        columns: The F columns of the rows that are aggregated.
    """

    source: int
    block: Block
    total: Sum
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
    features: list[LazyFeatures] = []
    tensors: list[Tensor | None] = []
    for one in rows:
        lazy, tensor = one if isinstance(one, tuple) else (one, one)
        features.append(LazyFeatures.of(lazy.detach()) if isinstance(lazy, Tensor) else lazy)
        tensors.append(tensor if isinstance(tensor, Tensor) else None)
    part = parts[0]
    dtype = autocast_type(part.bias.device, part.bias.dtype)
    is_one = len(parts) == len(part.terms) == 1 and part.terms[0].source == part.own
    is_one = is_one and part.terms[0].columns == part.columns == _ALL
    if part.bias.device.type == "cpu" and not is_one:
        dtype = product_type(dtype)
    parameters = [tensor for part in parts for tensor in part.parameters]
    return _sums(is_one, features, parts, dtype, dropout, *tensors, *parameters)


def autocast_type(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """Autocast's type on this device; without autocast `otherwise`."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


class _Sums(torch.autograd.Function):
    """One sum is one operator: its positive results are the mask of ReLU and dropout. Of several
    the gradient of a node type's rows is one matrix; all that read them add to it in place."""

    @staticmethod
    def forward(
        ctx: Any,
        is_one: bool,
        features: Sequence[LazyFeatures],
        parts: Sequence[LinearSum],
        dtype: torch.dtype,
        dropout: float | None,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.is_one, ctx.parts, ctx.dropout = is_one, parts, dropout
        ctx.shapes = [(len(given), given.num_features) for given in features]
        ctx.types = [None if tensor is None else tensor.dtype for tensor in tensors]
        given = [t if t is None else t.to(dtype) for t in tensors[len(features) :]]
        parameters: Iterator[Any] = iter(given)
        saved: list[Tensor | None] = []
        outputs: list[Tensor] = []
        for part in parts:
            bias, root, *weights = [next(parameters) for _ in part.parameters]
            own = features[part.own]
            if is_one:
                weight = weights[0] if root is None else torch.cat([weights[0], root], dim=1)
                layer = weight, bias, root is not None, dropout, any(ctx.needs_input_grad)
                out, inputs = ops.aggregate_linear(*own.arguments(), *part.terms[0].total, *layer)
                saved += [weight, inputs, None if dropout is None else out]
            else:
                inputs = [own.columns(part.columns).read(0, part.num_dst, dtype)]
                for term in part.terms:
                    rows = features[term.source].columns(term.columns).arguments()
                    inputs.append(ops.aggregate(*rows, *term.total, "none", dtype))
                out = torch.addmm(bias, inputs[0], root.t())
                for aggregates, weight in zip(inputs[1:], weights, strict=True):
                    out.addmm_(aggregates, weight.t())
                saved += [*inputs, root, *weights]
            outputs.append(out)
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        types, needs, number = ctx.types, ctx.needs_input_grad[5:], len(ctx.shapes)
        rows: list[Tensor | None] = [None] * number
        if ctx.is_one:
            (part,) = ctx.parts
            needs_rows, has_root = needs[part.own], part.root_weight is not None
            grad_inputs, weight_grad, bias_grad = ops.aggregate_linear_backward(
                grads[0], *ctx.saved_tensors, ctx.dropout, types[-1], needs_rows
            )
            if needs_rows:
                _, block, total, *_ = part.terms[0]
                rows[part.own] = source_gradient(
                    grad_inputs, block, total, types[part.own], has_root
                )
            weight_grads = [weight_grad, None]
            if has_root:  # contiguous, as DDP requires of gradients
                weight_grads = [half.contiguous() for half in weight_grad.chunk(2, dim=1)]
            return *[None] * 5, *rows, bias_grad, weight_grads[1], weight_grads[0]
        saved = iter(ctx.saved_tensors)
        found: list[Tensor] = []
        owns: list[list[tuple[Tensor, slice]]] = [[] for _ in range(number)]
        aggregates: list[list[tuple[LinearTerm, Tensor]]] = [[] for _ in range(number)]
        for part, grad in zip(ctx.parts, grads, strict=True):
            inputs, weights = ([next(saved) for _ in range(len(part.terms) + 1)] for _ in range(2))
            found += [grad.sum(0), *(grad.t() @ given for given in inputs)]
            if needs[part.own]:
                owns[part.own].append((grad @ weights[0], part.columns))
            for term, weight in zip(part.terms, weights[1:], strict=True):
                if needs[term.source]:
                    aggregates[term.source].append((term, grad @ weight))
        for i in range(number):
            if needs[i]:
                rows[i] = _row_gradient(ctx.shapes[i], owns[i], aggregates[i], types[i])
        weights = [one.to(dtype) for one, dtype in zip(found, types[number:], strict=True)]
        return *[None] * 5, *rows, *weights


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
        if term.block.num_edges == 0:
            continue
        found = source_gradient(grad, term.block, term.total, dtype)
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


_sums: Callable[..., tuple[Tensor, ...]] = _Sums.apply
