"""Calling a model on a mini-batch: a `GNN`, a `HeteroGNN` or a plain PyG model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gnntrain.compute.buffers import BUFFERS
from gnntrain.loading.batch import Batch
from gnntrain.models import AnyModel, PlainModel
from gnntrain.models.embedding import embedding_tables


class OnBatch(nn.Module):
    """Wraps a model: takes a `Batch`, returns the outputs of its seeds.

    DDP and `torch.compile` wrap this module.
    """

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch | None) -> Tensor:
        """Outputs of the examples, `[batch_size, num_outputs]`; without a batch the sum of all
        weights that DDP sees."""
        model: Any = self.model
        if batch is None:
            tables = {id(table.weight) for _, table in embedding_tables(model)}
            weights = [w for w in model.parameters() if w.requires_grad and id(w) not in tables]
            return torch.stack([weight.sum() for weight in weights]).sum()
        # A batch of the whole graph has all nodes, in order.
        n_id = {} if batch.sample is None else batch.n_id_dict
        out: Tensor
        if isinstance(model, PlainModel):
            if model.is_hetero:
                out = model(batch.x_dict, batch.edge_index_dict, n_id)
            else:
                out = model(batch.x, batch.edge_index)
        elif model.is_hetero:
            out = model(batch.rows, n_id, batch.hops)
        else:
            (x,) = (batch.rows if model.needs.rows else batch.x_dict).values()
            out = model(x, [block for hop in batch.hops for block in hop.edges.values()])
        if batch.seed_rows is not None:
            out = out[batch.seed_rows]
        if batch.pairs is not None:
            out = model.head(out, batch.pairs)
        return out[: batch.batch_size]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without gradients, and with the model in evaluation mode; then in the mode it was."""
    was_training = model.training
    model.eval()
    BUFFERS.clear()  # of other sizes: the memory of training would lie idle, and vice versa
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        BUFFERS.clear()
