"""Calling a model on a mini-batch: a `GNN` or a plain PyG model."""

from __future__ import annotations

from torch import Tensor, nn

from gnntrain.loading.batch import MiniBatch
from gnntrain.models import AnyModel, PlainModel


class OnBatch(nn.Module):
    """Wraps a model: takes a `MiniBatch`, returns the outputs of its seeds.

    DDP and `torch.compile` wrap this module.
    """

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: MiniBatch) -> Tensor:
        """Logits of the seeds, `[batch_size, num_outputs]`."""
        if isinstance(self.model, PlainModel):
            out: Tensor = self.model(batch.x, batch.edge_index)
        else:
            rows = batch.rows
            out = self.model(batch.x if rows is None else rows, batch.blocks)
        return out[: batch.batch_size] if batch.seed_rows is None else out[batch.seed_rows]
