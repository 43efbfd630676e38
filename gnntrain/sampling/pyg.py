"""Our sampler behind PyG's interface, and PyG's samplers behind ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import (
    BaseSampler,
    NeighborSampler,
    NodeSamplerInput,
    SamplerOutput,
)

from gnntrain.errors import UserError
from gnntrain.sampling.base import (
    Int64Array,
    SampledSubgraph,
    SampleKey,
    cumulative_hops,
)
from gnntrain.sampling.cpu import (
    CPUNeighborSampler,
    checked_fan_outs,
    checked_seeds,
    read_only_csc,
)


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


class PyGBackendSampler:
    """Stock PyG's `NeighborSampler` (pyg-lib or torch-sparse) behind our protocol.

    Each node draws once, when it is found; later hops see the same edges again, which is what
    PyG's trimmed models compute with. The backend draws from its own generator: the key has no
    effect. It works on a 64-bit copy of the graph.

    Args:
        indptr: int64 `[num_nodes + 1]`.
        indices: int32 or int64 `[num_edges]`, source nodes.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        edge_ids: Also return each edge's position in `indices`.

    Raises:
        UserError: Neither pyg-lib nor torch-sparse is installed.
    """

    def __init__(
        self,
        indptr: npt.NDArray[np.integer],
        indices: npt.NDArray[np.integer],
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        require_pyg_backend()
        offsets, sources = read_only_csc(indptr, indices)
        self._fan_outs = checked_fan_outs(fan_outs)
        self._num_nodes = len(offsets) - 1
        self._edge_ids = edge_ids
        # PyG builds its CSC from a COO edge_index of 16 bytes an edge; ours is there already.
        no_edges = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=self._num_nodes)
        self._sampler = NeighborSampler(no_edges, list(self._fan_outs), replace=replace)
        self._sampler.colptr = torch.from_numpy(offsets.copy())
        self._sampler.row = torch.from_numpy(sources.astype(np.int64))
        self._sampler.perm = None

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """In-neighbours a node, the hop next to the seeds first; −1 takes all."""
        return self._fan_outs

    def sample(self, seeds: Int64Array, *, key: SampleKey) -> SampledSubgraph:  # noqa: ARG002
        """Draw the neighbourhood of `seeds`, whatever the key.

        Raises:
            UserError: A seed is not a node of the graph, or occurs twice (the backends would
                return edges that are not there).
        """
        seeds = checked_seeds(seeds, self._num_nodes)
        num_repeated = len(seeds) - len(np.unique(seeds))
        if num_repeated > 0:
            raise UserError(
                f"{num_repeated} of {len(seeds)} seeds are repetitions",
                "Give each seed once, or use sampler.backend=numba.",
            )
        out = self._sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(seeds)))
        sources, destinations = out.row.numpy(), out.col.numpy()
        num_known = [len(seeds)]
        for _ in self._fan_outs:
            # Edges come by destination, and nodes are numbered as they are found.
            num_edges = np.searchsorted(destinations, num_known[-1])
            num_known.append(int(sources[:num_edges].max(initial=num_known[-1] - 1)) + 1)
        num_dst = num_known[-2] if self._fan_outs else 0
        indptr = np.zeros(num_dst + 1, np.int64)
        np.cumsum(np.bincount(destinations, minlength=num_dst), out=indptr[1:])
        edge_ids = out.edge.numpy() if self._edge_ids else None
        hops = cumulative_hops(indptr, sources.astype(np.int32), edge_ids, num_known)
        return SampledSubgraph(out.node.numpy(), len(seeds), hops)


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
