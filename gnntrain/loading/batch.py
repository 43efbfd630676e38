"""What a model computes on: blocks, and the mini-batch that carries them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gnntrain.compute.rows import Transposed
from gnntrain.loading.features import NamedRows
from gnntrain.sampling.base import SampledSubgraph


@dataclass(frozen=True, slots=True)
class Block:
    """The in-edges of some destination nodes in CSC form: one layer's message passing.

    In a mini-batch the destinations are the first `num_dst` of the `num_src` source nodes
    (`dst_offset` 0). In layer-wise inference the sources are all nodes of the graph and the
    destinations are the range that starts at `dst_offset`. Source `dst_offset + i` is therefore
    always the same node as destination `i`.

    On a GPU a block may be padded, so that its tensors keep their sizes from batch to batch:
    `indices` longer than `indptr[-1]` (and 0 there), the last destinations without in-edges, the
    last sources without out-edges.

    Attributes:
        indptr: int32 or int64 `[num_dst + 1]`.
        indices: same dtype, `[num_edges]`, source numbers.
        num_src: Number of source nodes.
        dst_offset: Source number of destination 0.
        weight: float32 `[num_edges]`, the graph's edge weights; None: all 1.
        degree: float32 `[num_dst]`, in-edges in the whole graph; None: no edge was left out.
        norm: float32 `[num_src]`, `Graph.gcn_norm` of the sources.
        max_in_edges: The most in-edges that a destination has here, if known (the fan-out): a GPU
            then need not provide for hubs.
        derived: What a model has worked out of the edges, kept for the block's next use.

    `weight`, `degree` and `norm` are there only where the model asks for them (`BlockNeeds`).
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    dst_offset: int = 0
    weight: Tensor | None = None
    degree: Tensor | None = None
    norm: Tensor | None = None
    max_in_edges: int | None = None
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    def out_edges(self) -> Transposed:
        """The edges by source, for the backward pass; found once. Of a block on the CPU."""
        if "out_edges" not in self.derived:
            arrays = self.indptr.numpy(), self.indices.numpy()
            self.derived["out_edges"] = Transposed.of(*arrays, self.num_src)
        edges: Transposed = self.derived["out_edges"]
        return edges

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The block with all its tensors on `device`: itself where they are there already."""
        tensors = {
            item.name: value
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()
        }
        if all(moved[name] is tensors[name] for name in tensors):
            return self
        return replace(self, **moved, derived={})


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a model wants of a mini-batch.

    Attributes:
        norm, weight, degree: In its blocks beside the edges, see `Block`.
        rows: The features named only (`MiniBatch.rows`): it reads them itself.
    """

    norm: bool = False
    weight: bool = False
    degree: bool = False
    rows: bool = False


NO_NEEDS = BlockNeeds()


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
