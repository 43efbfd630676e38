"""The mini-batch: blocks, features and targets of one step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import BatchValues
from gnntrain.loading.transfer import send_all
from gnntrain.sampling.base import SampledSubgraph
from gnntrain.sampling.block import Block, BlockNeeds


class MiniBatch(Data):  # type: ignore[misc]  # PyG's classes carry no types
    """One step's nodes as a PyG `Data`, and the blocks for the models of gnntrain.

    Attributes:
        x: Features of all nodes, float32 `[num_nodes, num_features]`. If only
            `rows` are set, they are read at the first access; models that take `rows` never read
            them.
        rows: The same as lazy rows; None if `x` is set.
        y: Targets of the seeds only, `[batch_size]` or `[batch_size, ...]`.
        n_id: int64 `[num_nodes]`, the nodes' ids in the graph, the seeds first.
        batch_size: Number of seeds whose output is computed.
        blocks: One `Block` a layer, the innermost first; the last one's destinations are the
            seeds (or all nodes of the graph, see `seed_rows`).
        seed_rows: int64 `[batch_size]`, the rows of the model's output that belong to the seeds;
            None: all rows, in order.
        num_counted: Seeds that enter the loss: `batch_size`, or 0 if this rank has no seed in the
            step and borrows one to take part in the all-reduce.
        global_batch_size: Counted seeds of all ranks together.
        sampled: The sampled subgraph; None for the whole graph.
        num_sampled_nodes, num_sampled_edges: By hop, for PyG's `trim_to_layer`; not for the
            whole graph.
    """

    blocks: tuple[Block, ...]
    num_counted: int
    global_batch_size: int

    @property
    def is_padded(self) -> bool:
        """Whether the blocks are padded: the sampled sizes are in device memory."""
        return self.sampled is not None and self.sampled.size is not None

    @property
    def x(self) -> Tensor:
        if "x" not in self._store:
            self._store["x"] = self._store["rows"].whole()
        features: Tensor = self._store["x"]
        return features

    @x.setter
    def x(self, features: Tensor) -> None:
        self._store["x"] = features

    # PyG's `Data` drops attributes that are None.
    @property
    def rows(self) -> LazyFeatures | None:
        rows: LazyFeatures | None = self._store.get("rows")
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

        Made at the first access: models that compute on `blocks` do not need it.
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
            return self.sampled.edge_index
        block = self.blocks[0]  # the whole graph
        numbers = torch.arange(block.num_dst, device=block.indptr.device)
        dst = numbers.repeat_interleave(block.indptr.diff(), output_size=block.num_edges)
        return torch.stack([block.indices.long(), dst])

    def on(self, device: torch.device) -> MiniBatch:
        """This batch after its tensors have been copied to a device, see `send_all`.

        `rows` and `x` are not copied: a `FeatureSource` gives them where the device reads them.
        `sampled` stays where it is.
        """
        own = {key: value for key, value in self._store.items() if isinstance(value, Tensor)}
        own.pop("x", None)
        edges = [block.tensors for block in self.blocks]
        given = [*own.values(), *(tensor for found in edges for tensor in found.values())]
        sent = iter(send_all(given, device))
        self._store.update({key: next(sent) for key in own})
        self.blocks = tuple(
            block.with_tensors({name: next(sent) for name in found})
            for block, found in zip(self.blocks, edges, strict=True)
        )
        return self


def mini_batch(
    graph: BatchValues,
    features: FeatureSource,
    subgraph: SampledSubgraph,
    needs: BlockNeeds,
    *,
    num_counted: int,
    global_batch_size: int,
    device: torch.device,
) -> MiniBatch:
    """The mini-batch of a sampled subgraph, on a device.

    Args:
        graph: The graph's values, on the device of the subgraph.
        features: Source of the feature rows.
        subgraph: The sampled subgraph.
        needs: The fields that the model reads.
        num_counted, global_batch_size: See `MiniBatch`.
        device: Where the model computes.
    """
    nodes, on_gpu = subgraph.nodes, devices.is_gpu(device)
    if on_gpu and not features.waits:
        (nodes,) = send_all([nodes], device)  # once for the features and the batch
    rows = features.select(nodes, subgraph.size)
    batch = MiniBatch(
        x=None if needs.rows else rows.whole(),
        rows=rows if needs.rows else None,
        y=graph.targets_of(subgraph.nodes[: subgraph.num_seeds]),
        n_id=nodes,
        batch_size=subgraph.num_seeds,
        blocks=graph.filled(subgraph, needs),
        num_counted=num_counted,
        global_batch_size=global_batch_size,
        sampled=subgraph,
        num_sampled_nodes=subgraph.num_sampled_nodes,
        num_sampled_edges=subgraph.num_sampled_edges,
    )
    if not on_gpu:
        return batch
    if needs.edge_index:
        batch.edge_index = subgraph.edge_index  # or the step would copy it, and wait
    return batch.on(device)
