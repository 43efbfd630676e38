"""Sums and maxima over the in-edges of a block, and sums of linear maps of sums, with gradients.

No tensor of edges × features is stored: the operators read the rows of the in-neighbours in place,
and the backward pass reduces over the transposed block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.aggregate import Aggregate, AggregateMax, AggregateMaxBackward
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.linear import AggregateLinear, AggregateLinearBackward
from gnntrain.compute.operator import Sum
from gnntrain.compute.products import product_type
from gnntrain.sampling.block import Block

Reduce = Literal["sum", "mean", "max"]
_ALL = slice(None)


def sampling_scale(block: Block) -> Tensor | None:
    """The factor that makes a sum over sampled in-edges an unbiased estimate of the full sum,
    float32 `[num_dst]`: the inverse of the probability `num_sampled / degree` with which an in-edge
    is sampled (Horvitz and Thompson, 1952). None: all in-edges were taken."""
    if block.degree is None:
        return None
    return block.degree.clamp(min=1) / block.indptr.diff().clamp(min=1)


def aggregate(source: Tensor | LazyFeatures, block: Block, total: Sum | None) -> Tensor:
    """Reduce the rows of the in-neighbours of every destination: float `[num_src, F]` (gradients
    flow to a tensor) → `[num_dst, F]`, in the type of a tensor, float32 of lazy features.

    `total` is the sum over the block's in-edges; None: the maximum, 0 where a destination has no
    in-edge. In-neighbours that share a maximum share its gradient.
    """
    if isinstance(source, Tensor):
        return _aggregate(source, block, total)
    out: Tensor
    if total is None:
        out, _ = AggregateMax(source, block.edges, torch.float32, False).run()
    else:
        out = Aggregate(source, block.edges, total, torch.float32).run()
    return out


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, block: Block, total: Sum | None) -> Tensor:
        ctx.block, ctx.total = block, total
        out: Tensor
        if total is None:
            rows = rows.contiguous()
            given = LazyFeatures(rows), block.edges, rows.dtype
            out, ties = AggregateMax(*given, ctx.needs_input_grad[0]).run()
            ctx.save_for_backward(rows, out, ties)
        else:
            features = LazyFeatures.of(rows)
            out = Aggregate(features, block.edges, total, rows.dtype).run()
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.total is not None:
            return source_gradient(grad, ctx.block, ctx.total, grad.dtype), None, None
        of_maximum = grad.contiguous(), *ctx.saved_tensors, ctx.block.transposed()
        return AggregateMaxBackward(*of_maximum).run(), None, None


def source_gradient(
    grad: Tensor, block: Block, total: Sum, dtype: torch.dtype, has_root: bool = False
) -> Tensor:
    """The gradient of the source rows behind a sum over a block, `[num_src, F]` in `dtype`, from
    that of the sums, float `[num_dst, F]`; with `has_root` `[num_dst, 2F]`, whose second half is
    the gradient of the destinations' own rows."""
    of_sums, of_own = grad.chunk(2, dim=1) if has_root else (grad, None)
    over = block.transposed(), total.transposed()
    out: Tensor = Aggregate(LazyFeatures.of(of_sums), *over, dtype).run()
    if of_own is not None:
        out[block.dst_offset : block.dst_offset + block.num_dst].add_(of_own)
    return out


class LinearTerm(NamedTuple):
    """weight, `[O, F]`, · aggregate over the in-edges of one relation; or, without a block, · own
    row. Gradients flow to the weight.

    Attributes:
        source: Place of the rows in the list of rows. Own rows are the first of these (in a block
            of a single relation, those from `dst_offset` on).
        columns: The F columns of the rows that are read.
        kept: Cache of the inputs of the product, by type, where block and rows never change.
    """

    source: int
    weight: Tensor
    columns: slice = _ALL
    block: Block | None = None
    total: Sum = Sum()
    kept: dict[torch.dtype, Tensor] | None = None


class LinearSum(NamedTuple):
    """Σ terms + bias, `[O]`, for the destinations of one type. At most one term is of own rows, the
    first; only the sum over a single relation may be without it. Gradients flow to the bias."""

    terms: Sequence[LinearTerm]
    num_dst: int
    bias: Tensor

    @property
    def parameters(self) -> list[Tensor]:
        return [self.bias, *(term.weight for term in self.terms)]


LinearRows = Tensor | LazyFeatures | tuple[LazyFeatures, Tensor]
"""Rows; lazy ones may come with the tensor that takes their gradient."""


def linear_sums(
    rows: Sequence[LinearRows], parts: Sequence[LinearSum], dropout: float | None = None
) -> tuple[Tensor, ...]:
    """The rows of the destinations of each part, in autocast's type, or else that of the weights.

    A single part with one relation within a type is one operator, forward and backward.

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
    bias, terms = parts[0].bias, parts[0].terms
    dtype = autocast_type(bias.device, bias.dtype)
    is_one = len(parts) == sum(term.block is not None for term in terms) == 1
    is_one = is_one and all(t.source == terms[0].source and t.columns == _ALL for t in terms)
    if bias.device.type == "cpu" and not is_one:
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
        ctx.shapes = [(len(rows), rows.num_features) for rows in features]
        ctx.types = [None if tensor is None else tensor.dtype for tensor in tensors]
        given: Any = tensors[len(features) :]
        parameters = iter([parameter.to(dtype) for parameter in given])
        saved: list[Tensor | None] = []
        outputs: list[Tensor] = []
        for terms, num_dst, _ in parts:
            bias, *weights = [next(parameters) for _ in range(len(terms) + 1)]
            out: Any = None
            if is_one:
                block: Any = terms[-1].block
                over = features[terms[0].source], block.edges, terms[-1].total
                root = len(terms) > 1
                weight = torch.cat(weights[::-1], dim=1)
                kept = {} if terms[-1].kept is None else terms[-1].kept
                known = kept.get(dtype)
                keep = known is None and any(ctx.needs_input_grad)
                given = *over, weight, bias, root, dropout, keep, known
                out, inputs = AggregateLinear(*given).run()
                if known is not None:
                    inputs = known
                elif keep:
                    kept[dtype] = inputs
                saved += [weight, inputs, None if dropout is None else out]
            else:
                for term, weight in zip(terms, weights, strict=True):
                    lazy = features[term.source].columns(term.columns)
                    kept = {} if term.kept is None else term.kept
                    if term.block is None:
                        inputs = lazy.read(0, num_dst, dtype)
                    elif dtype in kept:
                        inputs = kept[dtype]
                    else:
                        inputs = Aggregate(lazy, term.block.edges, term.total, dtype).run()
                        kept[dtype] = inputs
                    if out is None:
                        out = torch.addmm(bias, inputs, weight.t())
                    else:
                        out.addmm_(inputs, weight.t())
                    saved += [inputs, weight]
            outputs.append(out)
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        types, needs, number = ctx.types, ctx.needs_input_grad[5:], len(ctx.shapes)
        rows: list[Tensor | None] = [None] * number
        if ctx.is_one:
            *own, term = ctx.parts[0].terms
            given = grads[0], *ctx.saved_tensors, ctx.dropout, types[-1], needs[term.source]
            grad_inputs, weight_grad, bias_grad = AggregateLinearBackward(*given).run()
            if needs[term.source]:
                of = term.block, term.total, types[term.source], bool(own)
                rows[term.source] = source_gradient(grad_inputs, *of)
            parts = weight_grad.chunk(2, dim=1) if own else [weight_grad]
            # Contiguous, as DDP requires of gradients.
            return *[None] * 5, *rows, bias_grad, *(part.contiguous() for part in parts[::-1])
        saved, found = iter(ctx.saved_tensors), list[Tensor]()
        of_rows: list[list[tuple[LinearTerm, Tensor]]] = [[] for _ in range(number)]
        for part, grad in zip(ctx.parts, grads, strict=True):
            found.append(grad.sum(0))
            for term in part.terms:
                inputs, weight = next(saved), next(saved)
                found.append(grad.t() @ inputs)
                if needs[term.source]:
                    of_rows[term.source].append((term, grad @ weight))
        for i, (shape, dtype) in enumerate(zip(ctx.shapes, types, strict=False)):
            out: Any = None
            for term, grad in of_rows[i]:
                if term.block and term.block.num_edges > 0:
                    part = source_gradient(grad, term.block, term.total, dtype)
                    if out is None:
                        out = part if part.shape == shape else part.new_zeros(shape)
                    if out is not part:
                        out[:, term.columns] += part
            if needs[i] and out is None:
                out = grads[0].new_zeros(shape, dtype=dtype)
            for term, grad in of_rows[i]:
                if term.block is None:
                    out[: len(grad), term.columns] += grad
            rows[i] = out
        weights = [one.to(dtype) for one, dtype in zip(found, types[number:], strict=True)]
        return *[None] * 5, *rows, *weights


_sums: Callable[..., tuple[Tensor, ...]] = _Sums.apply
_aggregate: Callable[..., Tensor] = _Aggregate.apply
