"""The CPU sampler behind PyG's interface, for PyG's own `NodeLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.cpu import CPUSampler


class NodeLoaderSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed
    """The CPU sampler for PyG's own loaders; needs neither pyg-lib nor torch-sparse.

    `NodeLoader(data, node_sampler=NodeLoaderSampler.from_data(data, [25, 10]), ...)` does what
    `NeighborLoader(data, [25, 10], ...)` does: only the nodes found in the last hop draw. Each
    call draws under a key of its own, (seed, 0, number of calls before); in a worker process of a
    `DataLoader` the worker's seed, which is new every epoch, takes the place of the 0.

    Args:
        indptr: int64 `[num_nodes + 1]`.
        indices: int32 or int64 `[num_edges]`, source nodes.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        seed: Seed of all draws.
        edge_permutation: int64 `[num_edges]`, where each entry of `indices` lies in the data's
            `edge_index`; None: in the same order.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        seed: int = 0,
        edge_permutation: Tensor | None = None,
    ) -> None:
        self._sampler = CPUSampler(
            indptr, indices, fan_outs, replace=replace, edge_ids=True, frontier_only=True
        )
        self._seed = seed
        self._step = 0
        self._edge_permutation = edge_permutation

    @classmethod
    def from_data(
        cls, data: Data, fan_outs: Sequence[int], *, replace: bool = False, seed: int = 0
    ) -> NodeLoaderSampler:
        """A sampler of a homogeneous `Data` with an `edge_index`.

        Raises:
            UserError: `data` has no `edge_index` (PyG would silently lose the sampled edges).
        """
        edge_index = data.edge_index
        if edge_index is None:
            raise UserError(
                "the Data object has no edge_index", "Set data.edge_index, int64 [2, num_edges]."
            )
        permutation = edge_index[1].argsort(stable=True)
        degrees = torch.bincount(edge_index[1], minlength=data.num_nodes)
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        fits = data.num_nodes <= torch.iinfo(torch.int32).max
        indices = edge_index[0, permutation].to(torch.int32 if fits else torch.int64)
        return cls(
            indptr,
            indices,
            fan_outs,
            replace=replace,
            seed=seed,
            edge_permutation=permutation,
        )

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Sample around `index.node`; called by PyG's loaders.

        Raises:
            UserError: The seeds carry time stamps.
        """
        if index.time is not None:
            raise UserError("NodeLoaderSampler cannot sample by time", "Leave out input_time.")
        subgraph = self._sampler.sample(index.node, self._next_key())
        row, col = subgraph.edge_index
        return SamplerOutput(
            node=subgraph.nodes,
            row=row,
            col=col,
            edge=subgraph.edge_ids,
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        """Raises UserError: there is no sampling around edges."""
        raise UserError(
            "NodeLoaderSampler samples around nodes only", "Use it with PyG's NodeLoader."
        )

    @property
    def edge_permutation(self) -> Tensor | None:
        return self._edge_permutation

    def _next_key(self) -> SampleKey:
        worker = torch.utils.data.get_worker_info()
        key = SampleKey(self._seed, 0 if worker is None else worker.seed, self._step)
        self._step += 1
        return key
