"""Embedding tables: learnt rows of the nodes of a type that has no features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnntrain.compute.features import LazyFeatures


class RowGradient(NamedTuple):
    """The gradient, float `[n, channels]`, of a table's rows `nodes`, each once (None: all)."""

    nodes: Tensor | None
    gradient: Tensor


class EmbeddingTable(nn.Module):
    """A learnt row for each node, of which a step updates only those of its batch.

    `weight`, float `[num_nodes, channels]`, requires no gradient: neither DDP nor a dense optimiser
    updates it. `forward` makes the batch's rows a leaf of autograd, whose gradient `take_gradient`
    returns for a row-wise optimiser. The initial rows are Xavier-uniform, as in OGB's and DGL's
    examples; of several `parts` side by side each is drawn as a table.
    """

    def __init__(self, num_nodes: int, channels: int, parts: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_nodes, channels), requires_grad=False)
        self._nodes: Tensor | None = None
        self._rows: Tensor | None = None
        for part in self.weight.detach().chunk(parts, dim=1):
            nn.init.xavier_uniform_(part)

    def forward(self, nodes: Tensor | None) -> Tensor:
        """The rows of some nodes (int64 `[n]`, each once; None: all in order), float
        `[n, channels]`. Where gradients are recorded, a leaf; of all rows it shares the memory of
        `weight`."""
        rows = self.in_place(nodes)[0].whole(self.weight.dtype)
        if torch.is_grad_enabled():
            self._rows = rows.requires_grad_()
        return rows

    def in_place(self, nodes: Tensor | None) -> tuple[LazyFeatures, Tensor]:
        """As `forward` without a copy, for a function that computes the rows' gradient: the rows,
        and a tensor `[n, channels]` without memory, which the gradient is to reach."""
        features = LazyFeatures(self.weight.detach(), nodes)
        leaf = self.weight.new_empty(()).expand(len(features), features.num_features)
        if torch.is_grad_enabled():
            self._nodes, self._rows = nodes, leaf.requires_grad_()
        return features, leaf

    def take_gradient(self) -> RowGradient | None:
        """The rows of the last forward pass and their gradient; forgets them. None if there was no
        pass since the last call, or no gradient reached its rows."""
        nodes, rows = self._nodes, self._rows
        self._nodes = self._rows = None
        return None if rows is None or rows.grad is None else RowGradient(nodes, rows.grad)


class LearntRows(NamedTuple):
    """The rows of a batch, before it is known how they are read: the argument of `forward`."""

    table: EmbeddingTable
    nodes: Tensor | None


def embedding_tables(model: nn.Module) -> Iterator[tuple[str, EmbeddingTable]]:
    """A model's tables by the names of their modules, in the order of the model's modules."""
    for name, module in model.named_modules():
        if isinstance(module, EmbeddingTable):
            yield name, module


def num_parameters(model: nn.Module) -> int:
    """The number of trained parameters, those of embedding tables among them."""
    dense = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return dense + sum(table.weight.numel() for _, table in embedding_tables(model))
