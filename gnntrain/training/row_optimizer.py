"""An optimiser of embedding tables that changes only the rows which a step has read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from gnntrain.compute import ops
from gnntrain.config import TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.models.embedding import EmbeddingTable, RowGradient, embedding_tables

_BETAS, _EPS = (0.9, 0.999), 1e-8  # torch's defaults


class RowOptimizer(optim.Optimizer):
    """Updates the rows of embedding tables that a batch has read, equally on all ranks.

    `collect` takes the gradients of the batch's rows from the tables and averages them over the
    ranks; `step` updates these rows. The formulas are those of torch's dense optimisers. Rows that
    were not read stay as they are, with their moments: no weight decay, no momentum, as in torch's
    `SparseAdam`. A step that reads all rows is the dense optimiser's.

    Its parameters, for torch, are stand-ins for the rows of the step: of each table one, whose
    `grad` is their gradient, so that it is scaled and clipped as others. Sparse gradients would do
    the same, but not every device has them.

    Args:
        tables: In the same order on all ranks.
        config: The `trainer` keys.
        context: This rank.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], config: TrainerConfig, context: DistributedContext
    ) -> None:
        group = {"lr": config.lr, "weight_decay": config.weight_decay, "momentum": config.momentum}
        read = [nn.Parameter(table.weight.detach()[:0]) for table in tables]
        super().__init__(read, group)
        self._tables = tables
        self._read = read
        self._nodes: list[Tensor | None] = [None] * len(tables)
        self._context = context
        self._kind = config.optimizer
        self._moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        if self._kind == "sgd":
            self._moments = ("momentum_buffer",) if config.momentum > 0 else ()

    @torch.no_grad()
    def collect(self) -> list[nn.Parameter]:
        """Take the gradients of the last backward pass. Collective.

        Returns:
            Stand-ins for the rows that were read, one a table, with their `grad`, float
            `[n, channels]`.
        """
        found: Sequence[RowGradient | None]
        found = [table.take_gradient() for table in self._tables]
        if self._context.world_size > 1:
            found = _averaged(found, self._tables, self._context)
        self._forget()
        for i, own in enumerate(found):
            if own is not None and len(own.gradient) > 0:
                self._nodes[i] = own.nodes
                self._read[i].data = self._read[i].grad = own.gradient
        return [rows for rows in self._read if rows.grad is not None]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the rows that have a gradient, and forget the gradient."""
        assert closure is None
        (group,) = self.param_groups
        for table, rows, nodes in zip(self._tables, self._read, self._nodes, strict=True):
            if rows.grad is not None:
                weight = table.weight.detach()
                self._update_rows(weight, nodes, rows.grad, self.state[rows], group)
        self._forget()

    def _forget(self) -> None:
        for rows in self._read:
            rows.grad, rows.data = None, rows.data[:0].clone()

    def _update_rows(
        self,
        weight: Tensor,
        nodes: Tensor | None,
        grad: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        if not state:
            state["step"] = torch.zeros(())
            state.update({name: torch.zeros_like(weight) for name in self._moments})
        matrices = [weight, *(state[name] for name in self._moments)]
        if nodes is None:  # all rows
            self._update(grad, matrices, state["step"], group)
            return
        if self._kind != "sgd":
            self._adam_rows(nodes, grad, matrices, state["step"], group)
            return
        rows = [matrix[nodes] for matrix in matrices]
        self._update(grad, rows, state["step"], group)
        for matrix, changed in zip(matrices, rows, strict=True):
            matrix[nodes] = changed

    def _adam_rows(
        self,
        nodes: Tensor,
        grad: Tensor,
        matrices: Sequence[Tensor],
        step: Tensor,
        group: dict[str, Any],
    ) -> None:
        """Apply torch's Adam or AdamW to some rows of the weight and their moments, in place."""
        step += 1
        lr, weight_decay = float(group["lr"]), group["weight_decay"]
        is_decoupled = self._kind == "adamw"
        corrections = [1 - beta ** float(step) for beta in _BETAS]
        ops.adam_rows(
            *matrices,
            nodes,
            grad,
            *_BETAS,
            decay=1 - lr * weight_decay if is_decoupled else 1.0,
            l2=0.0 if is_decoupled else weight_decay,
            step_size=lr / corrections[0],
            root=math.sqrt(corrections[1]),
            eps=_EPS,
        )

    def _update(
        self, grad: Tensor, rows: Sequence[Tensor], step: Tensor, group: dict[str, Any]
    ) -> None:
        """Apply torch's formula to rows of the weight and their moments."""
        weight, *moments = rows
        keys = {"lr": group["lr"], "weight_decay": group["weight_decay"], "maximize": False}
        if self._kind == "sgd":
            keys |= {"momentum": group["momentum"], "dampening": 0.0, "nesterov": False}
            sgd([weight], [grad], [*moments] or [None], **keys)
            return
        kind = adamw if self._kind == "adamw" else adam
        keys |= {"beta1": _BETAS[0], "beta2": _BETAS[1], "eps": _EPS, "amsgrad": False}
        first, second = moments
        kind([weight], [grad], [first], [second], [], [step], **keys)


def build_row_optimizer(
    model: nn.Module, config: TrainerConfig, context: DistributedContext
) -> RowOptimizer | None:
    """The optimiser of a model's embedding tables; None: it has none."""
    tables = [table for _, table in embedding_tables(model)]
    return RowOptimizer(tables, config, context) if tables else None


def _averaged(
    found: Sequence[RowGradient | None],
    tables: Sequence[EmbeddingTable],
    context: DistributedContext,
) -> list[RowGradient]:
    """The mean over the ranks of the gradients of each table, equal bit for bit on all ranks.

    A rank that has not read a row has no gradient for it.
    """
    device = context.device
    given = [_listed(own, table.weight) for own, table in zip(found, tables, strict=True)]
    own_sizes = torch.tensor([len(nodes) for nodes, _ in given], device=device)
    sizes = torch.stack(_gathered(own_sizes, len(tables), context)).T.tolist()
    merged: list[RowGradient] = []
    for (nodes, gradient), by_rank in zip(given, sizes, strict=True):
        all_nodes = _gathered(nodes, max(by_rank), context)
        all_rows = _gathered(gradient, max(by_rank), context)
        parts = list(zip(by_rank, all_nodes, all_rows, strict=True))
        unique, places = torch.unique(
            torch.cat([nodes[:size] for size, nodes, _ in parts]), return_inverse=True
        )
        total = gradient.new_zeros(len(unique), gradient.shape[1])
        # Each rank has a row once at most: every row is summed in the order of the ranks.
        for (size, _, rows), at in zip(parts, places.split(by_rank), strict=True):
            total[at] += rows[:size]
        merged.append(RowGradient(unique, total / context.world_size))
    return merged


def _listed(own: RowGradient | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that were read, by number, and their gradient."""
    if own is None:
        return torch.empty(0, dtype=torch.int64, device=weight.device), weight[:0].detach()
    nodes = own.nodes
    every = torch.arange(len(weight), device=weight.device) if nodes is None else nodes
    return every, own.gradient


def _gathered(values: Tensor, size: int, context: DistributedContext) -> list[Tensor]:
    """The values of all ranks, each filled up to `size` rows."""
    padded = values.new_zeros(size, *values.shape[1:])
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in range(context.world_size)]
    with context.in_collective():
        dist.all_gather(found, padded, context.group)
    return found
