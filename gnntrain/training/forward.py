"""Calling a model on a mini-batch: a `GNN` or a plain PyG model."""

from __future__ import annotations

from torch import Tensor, nn

from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.hetero_batch import HeteroBatch
from gnntrain.loading.loader import AnyBatch
from gnntrain.models import AnyModel, HeteroGNN, PlainModel


class OnBatch(nn.Module):
    """Wraps a model: takes a `MiniBatch`, returns the outputs of its seeds.

    DDP and `torch.compile` wrap this module.
    """

    def __init__(self, model: AnyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: AnyBatch) -> Tensor:
        """Logits of the seeds, `[batch_size, num_outputs]`."""
        out = self._typed(batch) if isinstance(batch, HeteroBatch) else self._plain(batch)
        return out[: batch.batch_size] if batch.seed_rows is None else out[batch.seed_rows]

    def _plain(self, batch: MiniBatch) -> Tensor:
        rows: Tensor
        if isinstance(self.model, PlainModel):
            rows = self.model(batch.x, batch.edge_index)
        else:
            rows = self.model(batch.x if batch.rows is None else batch.rows, batch.blocks)
        return rows

    def _typed(self, batch: HeteroBatch) -> Tensor:
        # A batch of the whole graph has all nodes, in order.
        n_id = {} if batch.sampled is None else batch.n_id_dict
        rows: Tensor
        if isinstance(self.model, HeteroGNN):
            rows = self.model(batch.rows, n_id, batch.blocks)
        else:
            rows = self.model(batch.x_dict, n_id, batch.edge_index_dict)
        return rows
