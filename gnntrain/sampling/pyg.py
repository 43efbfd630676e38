"""PyG's own sampling, by pyg-lib or torch-sparse: `sampler.backend=pyg`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, GraphStore
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput

from gnntrain.data.graph import Edges
from gnntrain.data.pyg_graph import pyg_csc
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampledSubgraph, SampleKey, Sampler, cumulative_blocks
from gnntrain.sampling.cpu import check_hop_edges, checked_fan_outs


class PyGSampler(Sampler):
    """Draws with PyG's own `NeighborSampler`, on which PyG's `NeighborLoader` runs.

    Each node draws once, when it is found, as in all of PyG's walks.

    pyg-lib and torch-sparse draw from torch's generator, the one of dropout. Every call seeds it by
    its key and its first seed, and puts it back. So a run can be repeated and resumed exactly, and
    evaluation does not disturb training; but `sample` must be called in the thread of the training
    step, and, other than with our own samplers, a draw depends on the number of ranks.

    Args:
        indptr: int64 `[num_nodes + 1]`, where each node's in-edges start in `indices`.
        indices: int32 or int64 `[num_edges]`, the source node of each edge.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        edge_ids: PyG always returns the edges' positions, whether they are asked for or not.

    Raises:
        UserError: Neither pyg-lib nor torch-sparse is installed.
    """

    thread_safe = False

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        self._num_hops = len(fan_outs)
        require_pyg_backend()
        # PyG's sampler keeps the tensors alone; the object must live for other samplers to share.
        self._graph = SharedCSC.of(indptr, indices)
        num_neighbors = list(checked_fan_outs(fan_outs))
        self._sampler = NeighborSampler((Data(), self._graph), num_neighbors, replace=replace)

    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: int64 `[num_seeds]`, global node ids, each once.
            key: Names the draw, together with the first seed.

        Raises:
            UserError: A seed occurs twice (pyg-lib would return edges that are not there).
        """
        _refuse_repeated(seeds)
        with _seeded(key.seed, key.epoch, key.step, *seeds[:1].tolist()):
            drawn = self._sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
        return subgraph_of(drawn, len(seeds), self._num_hops)


class SharedCSC(GraphStore):  # type: ignore[misc]  # PyG is not typed
    """A CSC as PyG's samplers take it, beside a `FeatureStore`. Read-only; see `PyGGraph`."""

    _shared: ClassVar[WeakValueDictionary[tuple[int, int, bool], SharedCSC]] = WeakValueDictionary()

    def __init__(self, indptr: Tensor, indices: Tensor) -> None:
        super().__init__()
        self._size = (len(indptr) - 1, len(indptr) - 1)
        self._csc = pyg_csc(Edges(indptr.numpy(), indices.numpy()))

    @classmethod
    def of(cls, indptr: Tensor, indices: Tensor) -> SharedCSC:
        """One for all samplers of a graph: it may hold a copy of the edges."""
        key = indptr.data_ptr(), indices.data_ptr(), torch_geometric.typing.WITH_PYG_LIB
        graph = cls._shared.get(key)
        if graph is None:
            graph = cls._shared[key] = cls(indptr, indices)
        return graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The only edge type's: in CSC form."""
        return [EdgeAttr(None, EdgeLayout.CSC, size=self._size)]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        return self._csc if edge_attr.layout == EdgeLayout.CSC else None

    def _refuse(self, *_: Any) -> bool:
        """PyG's answer to a write that failed."""
        return False

    _put_edge_index = _remove_edge_index = _refuse


def subgraph_of(drawn: SamplerOutput, num_seeds: int, num_hops: int) -> SampledSubgraph:
    """The subgraph that one of PyG's samplers drew.

    Each node draws once, when it is found; later hops see the same edges again, which is what
    PyG's trimmed models compute with.

    Args:
        drawn: As pyg-lib and torch-sparse fill it: edges by destination, nodes numbered as they are
            found. No seed occurs twice.
        num_seeds: The first of the nodes.
        num_hops: Of the walk.
    """
    sources, destinations = drawn.row.numpy(), drawn.col.numpy()
    num_known, ends = [num_seeds], [0]
    for _ in range(num_hops):
        # torch-sparse does not count by hop, so that this is worked out from the numbers.
        ends.append(int(np.searchsorted(destinations, num_known[-1])))
        num_known.append(int(sources[: ends[-1]].max(initial=num_known[-1] - 1)) + 1)
    check_hop_edges(len(sources))
    num_dst = num_known[-2] if num_hops else 0
    indptr = np.zeros(num_dst + 1, np.int32)
    np.cumsum(np.bincount(destinations, minlength=num_dst), out=indptr[1:])
    blocks = cumulative_blocks(
        torch.from_numpy(indptr), drawn.row.to(torch.int32), drawn.edge.long(), num_known
    )
    num_new_edges = [int(after - before) for before, after in pairwise(ends)]
    return SampledSubgraph(drawn.node.long(), num_seeds, blocks, num_new_edges)


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


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Inside, torch's draws on the CPU are a pure function of `key`; the generator is restored."""
    seed = np.random.SeedSequence([part % 2**64 for part in key]).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed[0]))
        yield


def _refuse_repeated(seeds: Tensor) -> None:
    num_repeated = len(seeds) - len(np.unique(seeds.numpy()))
    if num_repeated > 0:
        raise UserError(
            f"{num_repeated} of {len(seeds)} seeds are repetitions",
            "Give each seed once, or use sampler.backend=numba.",
        )
