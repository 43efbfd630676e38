"""The mini-batch: blocks, features and labels of one step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnntrain.loading.features import NamedRows
from gnntrain.sampling.base import SampledSubgraph
from gnntrain.sampling.block import Block


class MiniBatch(Data):  # type: ignore[misc]  # PyG's classes carry no types
    """One step's nodes as PyG users know them, and the blocks our models compute on.

    Attributes:
        x: Features of all nodes, float32 `[num_nodes, num_features]`. Where only `rows` are there,
            they are read when first asked for: models that read rows themselves never pay for it.
        rows: The same, named but not read (on a GPU a `DeviceTable`); None where `x` was made right
            away.
        y: Labels of the seeds, `[batch_size]` or `[batch_size, num_classes]`. Labels of other
            nodes are never needed and not fetched.
        n_id: int64 `[num_nodes]`, the nodes' ids in the graph, the seeds first.
        batch_size: Number of seeds whose output is computed.
        blocks: One `Block` a layer, the innermost first; the last one's destinations are the
            seeds (or all nodes of the graph, see `seed_rows`).
        seed_rows: int64 `[batch_size]`, the rows of the model's output that belong to the seeds;
            None: all rows, in order.
        num_counted: Seeds that enter the loss: `batch_size`, or 0 where this rank had no seed in
            the step and borrowed one so that it can take part in the all-reduce.
        global_batch_size: Counted seeds of all ranks together.
        sampled: What was sampled; None for the whole graph.
        num_sampled_nodes, num_sampled_edges: By hop, as PyG's `trim_to_layer` wants them; not for
            the whole graph.
    """

    blocks: tuple[Block, ...]
    num_counted: int
    global_batch_size: int

    is_padded = False
    """Whether the blocks are larger than what was drawn, which only the device knows."""

    @property
    def x(self) -> Tensor:
        if "x" not in self._store:
            self._store["x"] = self._store["rows"].whole()
        features: Tensor = self._store["x"]
        return features

    @x.setter
    def x(self, features: Tensor) -> None:
        self._store["x"] = features

    # PyG's Data forgets attributes that are None.
    @property
    def rows(self) -> NamedRows | None:
        rows: NamedRows | None = self._store.get("rows")
        return rows

    @property
    def seed_rows(self) -> Tensor | None:
        rows: Tensor | None = self._store.get("seed_rows")
        return rows

    @property
    def sampled(self) -> SampledSubgraph | None:
        subgraph: SampledSubgraph | None = self._store.get("sampled")
        return subgraph

    @property
    def edge_index(self) -> Tensor:
        """int64 `[2, num_edges]`, sources over destinations: the sampled subgraph for PyG's models.

        Made when first asked for: models that compute on `blocks` never pay for it.
        """
        if "edge_index" not in self._store:
            self._store["edge_index"] = self._edges().to(self.x.device)
        edges: Tensor = self._store["edge_index"]
        return edges

    @edge_index.setter
    def edge_index(self, edges: Tensor) -> None:
        self._store["edge_index"] = edges

    def _edges(self) -> Tensor:
        if self.sampled is not None:
            return torch.from_numpy(self.sampled.edge_index)
        block = self.blocks[0]  # the whole graph
        dst = torch.arange(block.num_dst).repeat_interleave(block.indptr.cpu().diff())
        return torch.stack([block.indices.cpu().long(), dst])
