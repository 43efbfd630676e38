"""The mini-batch: the nodes, hops and targets of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.loading.transfer import send_all, sent
from gnntrain.sampling.block import BlockNeeds, Hop, Sample, edge_index_of

_Value = TypeVar("_Value")


@dataclass(slots=True)
class Batch:
    """One step's nodes, and the blocks for the models of gnntrain.

    Attributes have the names that they have in PyG's mini-batches: those by type of a `HeteroData`,
    and of a graph with one type those of a `Data` (`x`, `edge_index`, `n_id`) as well.

    Attributes:
        n_id_dict: By node type, int64 `[num_nodes]`, ids within the type; of the target type the
            seeds come first.
        rows: Lazy feature rows of each node type that has features, of all its nodes.
        hops: One a layer, the innermost first; the last one's destinations are the seeds (or all
            nodes of the graph, see `seed_rows`).
        y: Targets of the examples only, `[batch_size]` or `[batch_size, ...]`.
        batch_size: Number of examples whose output is computed: seeds, or pairs of them.
        num_counted: Examples that enter the loss: `batch_size`, or 0 if the only one is borrowed.
        global_batch_size: Counted examples of all ranks together.
        seed_rows: int64 `[batch_size]`, the rows of the model's output that belong to the seeds;
            None: the first ones, in order.
        pairs: See `Seeds`.
        sample: The sample; None for the whole graph.
    """

    n_id_dict: dict[NodeType, Tensor]
    rows: Mapping[NodeType, LazyFeatures]
    hops: tuple[Hop, ...]
    y: Tensor
    batch_size: int
    num_counted: int
    global_batch_size: int
    seed_rows: Tensor | None = None
    pairs: Tensor | None = None
    sample: Sample | None = None
    _x: dict[NodeType, Tensor] = field(default_factory=dict, repr=False)
    _edges: dict[EdgeType, Tensor] = field(default_factory=dict, repr=False)

    @property
    def is_padded(self) -> bool:
        """Whether the blocks are padded: the sampled sizes are in device memory."""
        return self.sample is not None and self.sample.size is not None

    @property
    def x_dict(self) -> dict[NodeType, Tensor]:
        """The rows as float32 `[num_nodes, num_features]`, read at the first access."""
        if not self._x:
            self._x = {node_type: rows.whole() for node_type, rows in self.rows.items()}
        return self._x

    @property
    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        """int64 `[2, num_edges]` of each edge type, sources over destinations: the sample for PyG's
        models, see `Sample`. Made at the first access: other models do not need it."""
        if not self._edges and self.hops:
            if self.sample is not None:
                edges = self.sample.edge_index()
            else:  # the whole graph
                blocks = self.hops[0].edges.items()
                edges = {name: edge_index_of(block, 0, block.num_edges) for name, block in blocks}
            # The sample may be in host memory: all types go by one copy, without a wait.
            device = next(iter(self.n_id_dict.values())).device
            self._edges = dict(zip(edges, send_all(list(edges.values()), device), strict=True))
        return self._edges

    def read(self, needs: BlockNeeds) -> None:
        """Make now what a model of these needs would make at its first access."""
        if not needs.rows:
            _ = self.x_dict
        if needs.edge_index:
            _ = self.edge_index_dict

    @property
    def num_sampled_nodes_dict(self) -> dict[NodeType, list[int]]:
        """By hop, for PyG's `trim_to_layer`; not for the whole graph."""
        assert self.sample is not None, "the whole graph is not sampled"
        return self.sample.num_sampled_nodes

    @property
    def num_sampled_edges_dict(self) -> dict[EdgeType, list[int]]:
        """Likewise."""
        assert self.sample is not None, "the whole graph is not sampled"
        return self.sample.num_sampled_edges

    @property
    def x(self) -> Tensor:
        """See `x_dict`, of the only node type."""
        return _only(self.x_dict)

    @property
    def n_id(self) -> Tensor:
        """See `n_id_dict`, of the only node type."""
        return _only(self.n_id_dict)

    @property
    def edge_index(self) -> Tensor:
        """See `edge_index_dict`, of the only edge type."""
        return _only(self.edge_index_dict)

    @property
    def num_sampled_nodes(self) -> list[int]:
        """See `num_sampled_nodes_dict`, of the only node type."""
        return _only(self.num_sampled_nodes_dict)

    @property
    def num_sampled_edges(self) -> list[int]:
        """See `num_sampled_edges_dict`, of the only edge type."""
        return _only(self.num_sampled_edges_dict)

    def to(self, device: torch.device | str) -> Batch:
        """The batch with its tensors on a device, by one copy for each type of numbers; itself if
        they are there already.

        `rows` and `sample` stay: a `FeatureSource` gives lazy rows where the device reads them.
        """
        device = torch.device(device)
        tensors = [*self.n_id_dict.values(), self.y, *self._x.values(), *self._edges.values()]
        if all(tensor.device.type == device.type for tensor in tensors):
            return self
        moved = sent(replace(self, rows={}, sample=None), device)
        return replace(moved, rows=self.rows, sample=self.sample)


def _only(by_type: Mapping[NodeType, _Value] | Mapping[EdgeType, _Value]) -> _Value:
    if len(by_type) != 1:
        raise AttributeError(f"the batch has {len(by_type)} types: choose one by its name")
    (value,) = by_type.values()
    return value
