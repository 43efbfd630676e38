"""Our sampler behind PyG's interface, and what PyG's own samplers draw in our form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from gnntrain.errors import UserError
from gnntrain.sampling.base import SampledSubgraph, SampleKey, cumulative_hops
from gnntrain.sampling.cpu import CPUNeighborSampler


class PyGSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed
    """Our CPU sampler for PyG's own loaders; needs neither pyg-lib nor torch-sparse.

    `NodeLoader(data, node_sampler=PyGSampler.from_data(data, [25, 10]), ...)` does what
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
        indptr: npt.NDArray[np.integer],
        indices: npt.NDArray[np.integer],
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        seed: int = 0,
        edge_permutation: Tensor | None = None,
    ) -> None:
        self._sampler = CPUNeighborSampler(
            indptr, indices, fan_outs, replace=replace, edge_ids=True, frontier_only=True
        )
        self._seed = seed
        self._step = 0
        self._edge_permutation = edge_permutation

    @classmethod
    def from_data(
        cls, data: Data, fan_outs: Sequence[int], *, replace: bool = False, seed: int = 0
    ) -> PyGSampler:
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
        fits = data.num_nodes <= np.iinfo(np.int32).max
        indices = edge_index[0, permutation].to(torch.int32 if fits else torch.int64)
        return cls(
            indptr.numpy(),
            indices.numpy(),
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
            raise UserError("PyGSampler cannot sample by time", "Leave out input_time.")
        subgraph = self._sampler.sample(index.node.numpy(), key=self._next_key())
        edge_ids = subgraph.edge_ids
        row, col = torch.from_numpy(subgraph.edge_index)
        return SamplerOutput(
            node=torch.from_numpy(subgraph.nodes),
            row=row,
            col=col,
            edge=None if edge_ids is None else torch.from_numpy(edge_ids),
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        """Raises UserError: there is no sampling around edges."""
        raise UserError("PyGSampler samples around nodes only", "Use it with PyG's NodeLoader.")

    @property
    def edge_permutation(self) -> Tensor | None:
        return self._edge_permutation

    def _next_key(self) -> SampleKey:
        worker = torch.utils.data.get_worker_info()
        key = SampleKey(self._seed, 0 if worker is None else worker.seed, self._step)
        self._step += 1
        return key


def subgraph_of_batch(batch: Data, num_hops: int) -> SampledSubgraph:
    """A mini-batch of PyG's own `NeighborLoader` as our loaders know subgraphs.

    Each node draws once, when it is found; later hops see the same edges again, which is what
    PyG's trimmed models compute with.

    Args:
        batch: With `n_id`, `edge_index`, `e_id` and `batch_size`, as pyg-lib and torch-sparse fill
            it: edges by destination, nodes numbered as they are found. No seed occurs twice.
        num_hops: Of the walk.
    """
    sources, destinations = batch.edge_index.numpy()
    num_known = [batch.batch_size]
    for _ in range(num_hops):
        # torch-sparse does not count by hop, so that this is worked out from the numbers.
        num_edges = np.searchsorted(destinations, num_known[-1])
        num_known.append(int(sources[:num_edges].max(initial=num_known[-1] - 1)) + 1)
    num_dst = num_known[-2] if num_hops else 0
    indptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(np.bincount(destinations, minlength=num_dst), out=indptr[1:])
    indices = sources.astype(np.int32, copy=False)
    hops = cumulative_hops(indptr, indices, batch.e_id.numpy(), num_known)
    return SampledSubgraph(batch.n_id.numpy().astype(np.int64, copy=False), num_known[0], hops)


def require_pyg_backend() -> None:
    """Raises UserError where PyG's own sampling is missing, with the way to get it."""
    typing = torch_geometric.typing
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        return
    version = torch.__version__.partition("+")[0]
    raise UserError(
        "sampler.backend=pyg needs pyg-lib or torch-sparse, and neither can be imported",
        f"Install pyg-lib with `pip install pyg-lib -f https://data.pyg.org/whl/torch-{version}"
        "+cpu.html` (or +cu…), or build torch-sparse with `pip install --no-build-isolation "
        "torch-scatter torch-sparse`; sampler.backend=numba needs nothing.",
    )
