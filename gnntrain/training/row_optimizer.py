"""An optimiser of embedding tables that changes only the rows which a step has read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim.sgd import sgd

from gnntrain.compute.rows import AdamRows
from gnntrain.config import TrainerConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.models.embedding import EmbeddingTable, RowGradient

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
        self._nodes: list[Tensor] = []
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
        self._forget()
        gradients = [self._listed(table) for table in self._tables]
        if self._context.world_size > 1:
            gradients = self._averaged(gradients)
        self._nodes = [nodes for nodes, _ in gradients]
        for rows, (nodes, gradient) in zip(self._read, gradients, strict=True):
            if len(nodes) > 0:
                rows.data = rows.grad = gradient
        return [rows for rows in self._read if rows.grad is not None]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the rows that have a gradient, and forget the gradient."""
        assert closure is None
        (group,) = self.param_groups
        for table, rows, nodes in zip(self._tables, self._read, self._nodes, strict=True):
            if rows.grad is None:
                continue
            weight, state = table.weight.detach(), self.state[rows]
            if not state:
                state["step"] = torch.zeros(())
                state.update({name: torch.zeros_like(weight) for name in self._moments})
            matrices = [weight, *(state[name] for name in self._moments)]
            lr, weight_decay = float(group["lr"]), group["weight_decay"]
            if self._kind == "sgd":
                keys = {"momentum": group["momentum"], "dampening": 0.0, "nesterov": False}
                keys |= {"lr": lr, "weight_decay": weight_decay, "maximize": False}
                changed, *moments = updated = [matrix[nodes] for matrix in matrices]
                sgd([changed], [rows.grad], [*moments] or [None], **keys)
                for matrix, new in zip(matrices, updated, strict=True):
                    matrix[nodes] = new
                continue
            state["step"] += 1
            is_decoupled = self._kind == "adamw"
            corrections = [1 - beta ** float(state["step"]) for beta in _BETAS]
            weight, exp_avg, exp_avg_sq = matrices
            AdamRows(
                weight,
                exp_avg,
                exp_avg_sq,
                nodes,
                rows.grad,
                *_BETAS,
                decay=1 - lr * weight_decay if is_decoupled else 1.0,
                l2=0.0 if is_decoupled else weight_decay,
                step_size=lr / corrections[0],
                root=math.sqrt(corrections[1]),
                eps=_EPS,
            ).run()
        self._forget()

    def _forget(self) -> None:
        for rows in self._read:
            rows.grad, rows.data = None, rows.data[:0].clone()

    def _listed(self, table: EmbeddingTable) -> tuple[Tensor, Tensor]:
        """The rows that a table's last batch has read, by number, and their gradient."""
        read = table.take_gradient() or RowGradient(None, table.weight.detach()[:0])
        every = torch.arange(len(read.gradient), device=table.weight.device)
        return every if read.nodes is None else read.nodes, read.gradient

    def _averaged(self, gradients: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """The mean over the ranks of the gradients of each table, equal bit for bit on all ranks.

        A rank that has not read a row has no gradient for it.
        """
        context, averaged = self._context, []
        own_sizes = torch.tensor([len(nodes) for nodes, _ in gradients], device=context.device)
        sizes = torch.stack(_gathered(own_sizes, len(gradients), context)).T.tolist()
        for (nodes, gradient), by_rank in zip(gradients, sizes, strict=True):
            all_nodes = _gathered(nodes, max(by_rank), context)
            all_rows = _gathered(gradient, max(by_rank), context)
            read = [nodes[:size] for nodes, size in zip(all_nodes, by_rank, strict=True)]
            unique, positions = torch.unique(torch.cat(read), return_inverse=True)
            total = gradient.new_zeros(len(unique), gradient.shape[1])
            # Each rank has a row once at most: every row is summed in the order of the ranks.
            for rows, at in zip(all_rows, positions.split(by_rank), strict=True):
                total[at] += rows[: len(at)]
            averaged.append((unique, total / context.world_size))
        return averaged


def _gathered(values: Tensor, size: int, context: DistributedContext) -> list[Tensor]:
    """The values of all ranks, each filled up to `size` rows."""
    padded = values.new_zeros(size, *values.shape[1:])
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in range(context.world_size)]
    with context.control.waiting():
        dist.all_gather(found, padded, context.group)
    return found
