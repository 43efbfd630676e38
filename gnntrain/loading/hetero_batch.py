"""The mini-batch of a typed graph: rows and blocks by type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import take
from gnntrain.loading.transfer import send_all
from gnntrain.sampling.block import Block, BlockNeeds
from gnntrain.sampling.hetero import HeteroBlock, HeteroSubgraph

_Key = TypeVar("_Key")


class HeteroBatch(HeteroData):  # type: ignore[misc]  # PyG's classes carry no types
    """One step's nodes as a PyG `HeteroData`, and the blocks for the models of gnntrain.

    Attributes:
        rows: Lazy feature rows of each node type that has features, of all its nodes.
        x_dict: The same as float32 `[num_nodes, num_features]`, read at the first access; models
            that take `rows` never read them.
        n_id_dict: int64 `[num_nodes]` of each node type, ids within the type; of the target type
            the seeds come first.
        y: Targets of the seeds only, `[batch_size]` or `[batch_size, ...]`.
        target: The node type of the seeds.
        batch_size, blocks, seed_rows, num_counted, global_batch_size: See `MiniBatch`; the seeds
            are the destinations of the target type in the last block.
        sampled: The sampled subgraph; None for the whole graph.
        num_sampled_nodes_dict, num_sampled_edges_dict: By hop, for PyG's `trim_to_layer`; not for
            the whole graph.
    """

    blocks: tuple[HeteroBlock, ...]
    y: Tensor
    target: NodeType
    batch_size: int
    num_counted: int
    global_batch_size: int

    @classmethod
    def of(
        cls,
        n_id: Mapping[NodeType, Tensor],
        rows: Mapping[NodeType, LazyFeatures],
        sampled: HeteroSubgraph | None = None,
        **values: object,
    ) -> HeteroBatch:
        """A batch of nodes, their rows, and the other attributes by name."""
        batch = cls()
        batch._global_store.update({**values, "sampled": sampled})
        for node_type, ids in n_id.items():
            store = batch.get_node_store(node_type)
            store["n_id"], store["rows"] = ids, rows.get(node_type)
            if sampled is not None:
                store["num_sampled_nodes"] = sampled.num_sampled_nodes[node_type]
        if sampled is not None:
            for edge_type, numbers in sampled.num_sampled_edges.items():
                batch.get_edge_store(*edge_type)["num_sampled_edges"] = numbers
        return batch

    @property
    def rows(self) -> dict[NodeType, LazyFeatures]:
        rows: dict[NodeType, LazyFeatures] = self.collect("rows", allow_empty=True)
        return rows

    @property
    def x_dict(self) -> dict[NodeType, Tensor]:
        for node_type, rows in self.rows.items():
            store = self.get_node_store(node_type)
            if "x" not in store:
                store["x"] = rows.whole()
        x: dict[NodeType, Tensor] = self.collect("x", allow_empty=True)
        return x

    # PyG's `HeteroData` drops attributes that are None.
    @property
    def seed_rows(self) -> Tensor | None:
        rows: Tensor | None = self._global_store.get("seed_rows")
        return rows

    @property
    def sampled(self) -> HeteroSubgraph | None:
        subgraph: HeteroSubgraph | None = self._global_store.get("sampled")
        return subgraph

    @property
    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        """int64 `[2, num_edges]` of each edge type, sources over destinations: the sampled subgraph
        for PyG's models, see `SampledSubgraph`.

        Made at the first access: models that compute on `blocks` do not need it.
        """
        for edge_type in self.blocks[0].edges:
            store = self.get_edge_store(*edge_type)
            if "edge_index" not in store:
                store["edge_index"] = self._edge_index(edge_type)
        edges: dict[EdgeType, Tensor] = self.collect("edge_index")
        return edges

    def _edge_index(self, edge_type: EdgeType) -> Tensor:
        if self.sampled is None:  # the whole graph
            block = self.blocks[0].edges[edge_type]
            return _edge_index(block, 0, block.num_edges)
        found, oldest = [], 0
        numbers = self.sampled.num_sampled_edges[edge_type]
        for hop, num_new in zip(reversed(self.blocks), numbers, strict=True):
            block = hop.edges[edge_type]
            found.append(_edge_index(block, oldest, num_new))
            oldest = block.num_dst
        return torch.cat(found, 1)

    def on(self, device: torch.device) -> HeteroBatch:
        """See `MiniBatch.on`."""
        own = [
            (store, key)
            for store in self.stores
            for key, value in store.items()
            if isinstance(value, Tensor) and key != "x"
        ]
        edges = [block.tensors for hop in self.blocks for block in hop.edges.values()]
        given = [store[key] for store, key in own]
        sent = iter(send_all([*given, *(t for found in edges for t in found.values())], device))
        for store, key in own:
            store[key] = next(sent)
        moved = iter([{name: next(sent) for name in found} for found in edges])
        self._global_store["blocks"] = tuple(
            replace(
                hop,
                edges={name: block.with_tensors(next(moved)) for name, block in hop.edges.items()},
            )
            for hop in self.blocks
        )
        return self


def _edge_index(block: Block, oldest: int, num_new: int) -> Tensor:
    """The last `num_new` edges of a block, which lead to its destinations from `oldest` on."""
    numbers = torch.arange(oldest, block.num_dst, device=block.indptr.device)
    dst = numbers.repeat_interleave(block.indptr[oldest:].diff(), output_size=num_new)
    return torch.stack([block.indices[block.num_edges - num_new :].long(), dst])


@dataclass(frozen=True, slots=True)
class HeteroValues:
    """Gives the targets and degrees of mini-batches, from the store's pages.

    Attributes:
        graph: The graph.
        targets: By node of the target type, see `Task.targets`.
    """

    graph: Graph
    targets: Tensor

    def targets_of(self, seeds: Tensor) -> Tensor:
        """The targets of nodes of the target type, int64 `[n]`."""
        return take(self.targets, seeds)

    def n_id(self, subgraph: HeteroSubgraph) -> Mapping[NodeType, Tensor]:
        """The nodes of each type as a model's rows for them are numbered."""
        return subgraph.nodes

    def filled(self, subgraph: HeteroSubgraph, needs: BlockNeeds) -> tuple[HeteroBlock, ...]:
        """The subgraph's blocks with the degrees that the model reads."""
        degrees = self._degrees(subgraph) if needs.degree else {}
        return tuple(
            replace(
                hop,
                edges={
                    name: self._filled(block, degrees.get(name))
                    for name, block in hop.edges.items()
                },
            )
            for hop in subgraph.blocks
        )

    def _degrees(self, subgraph: HeteroSubgraph) -> dict[EdgeType, Tensor]:
        """In-edges of each edge type in the whole graph, of all destinations of any block."""
        if not subgraph.blocks:
            return {}
        return {
            name: degrees(self.graph, name, subgraph.nodes[name[2]][: block.num_dst])
            for name, block in subgraph.blocks[0].edges.items()
        }

    def _filled(self, block: Block, degree: Tensor | None) -> Block:
        most = None if degree is None else degree[: block.num_dst]
        # They stay in `sampled`, which does not move to a GPU with a batch.
        return replace(block, degree=most, edge_ids=None)


def degrees(graph: Graph, edge_type: EdgeType, nodes: Tensor) -> Tensor:
    """The in-edges of one type of `nodes` (int64 `[n]`) in the whole graph: float32 `[n]`."""
    indptr = graph.edges[edge_type].indptr
    starts, ends = indptr[nodes.numpy()], indptr[nodes.numpy() + 1]
    return as_tensor((ends - starts).astype("float32"))


def hetero_batch(
    values: HeteroValues,
    features: Mapping[NodeType, FeatureSource],
    subgraph: HeteroSubgraph,
    needs: BlockNeeds,
    *,
    num_counted: int,
    global_batch_size: int,
    device: torch.device,
) -> HeteroBatch:
    """The mini-batch of a sampled subgraph, on a device.

    Args:
        values: Targets and degrees.
        features: Source of the feature rows of each node type that has some.
        subgraph: The sampled subgraph, in host memory.
        needs: The fields that the model reads.
        num_counted, global_batch_size: See `MiniBatch`.
        device: Where the model computes.
    """
    on_gpu = devices.is_gpu(device)
    n_id = dict(values.n_id(subgraph))
    if on_gpu and not any(source.waits for source in features.values()):
        # once for the features and the batch
        n_id = dict(zip(n_id, send_all(list(n_id.values()), device), strict=True))
    seeds = subgraph.nodes[subgraph.target][: subgraph.num_seeds]
    batch = HeteroBatch.of(
        n_id,
        {name: source.select(n_id[name]) for name, source in features.items()},
        subgraph,
        y=values.targets_of(seeds),
        target=subgraph.target,
        batch_size=subgraph.num_seeds,
        blocks=values.filled(subgraph, needs),
        num_counted=num_counted,
        global_batch_size=global_batch_size,
    )
    if needs.edge_index:
        _ = batch.x_dict, batch.edge_index_dict  # or the step would make and copy them
    return batch.on(device) if on_gpu else batch
