"""PyG's own `NeighborLoader` in the place of ours: `sampler.backend=pyg`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced

import numpy as np
import torch
import torch_geometric.loader
from torch_geometric.data import Data

from gnntrain.data.graph import Graph
from gnntrain.data.pyg_graph import PyGGraph
from gnntrain.errors import UserError
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import FeatureSource, as_tensor
from gnntrain.loading.loader import Position, RankBatch, SeedPlan, mini_batch
from gnntrain.phases import Phases
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from gnntrain.sampling.pyg import require_pyg_backend, subgraph_of_batch


class PyGNeighborLoader(Position):
    """Stock PyG's `NeighborLoader` over one rank's part of the seeds, as a loader of ours.

    The stock loader is fed through its `batch_sampler`: seeds are shuffled, cut and shared out as
    for our own loader. It samples; features, labels and blocks are added as to our own batches.
    Each node draws once, when it is found, as in all of PyG's walks.

    pyg-lib and torch-sparse draw from torch's generator, the one of dropout. Every batch seeds it
    by (seed, epoch, step, rank) and puts it back. So batches are made in the caller's thread, a run
    can be repeated and gone on with exactly, and evaluation does not disturb training; but other
    than with our own sampler what is drawn depends on the number of ranks.

    Args:
        store: The graph.
        features: Where feature rows come from.
        graph: The same graph as PyG takes it; one for all loaders of a rank.
        plan: Which seeds to take when; no seed may occur twice. `redraw` has no effect.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        needs: What blocks carry beside the edges.

    Raises:
        UserError: A seed occurs twice (pyg-lib would return edges that are not there), or neither
            pyg-lib nor torch-sparse is installed.
    """

    def __init__(
        self,
        store: Graph,
        features: FeatureSource,
        graph: PyGGraph,
        plan: SeedPlan,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        require_pyg_backend()
        _refuse_repeated(plan.seeds)
        self.plan = plan
        self._store = store
        self._features = features
        self._num_hops = len(fan_outs)
        self._needs = needs
        self.phases = Phases()
        # A DataLoader knows the seeds by their positions.
        self._positions = replaced(plan, seeds=np.arange(len(plan.seeds)))
        self._batches: list[Int64Array] = []  # of this epoch; the stock loader reads them
        self._stock = torch_geometric.loader.NeighborLoader(
            (Data(), graph),
            list(fan_outs),
            input_nodes=as_tensor(plan.seeds),
            replace=replace,
            batch_sampler=self._batches,
            generator=torch.Generator(),  # or each epoch would draw from the one of dropout
            filter_per_worker=True,  # or PyG logs what it inferred, and so sets up the root logger
        )

    def __len__(self) -> int:
        return self.plan.num_steps

    def __iter__(self) -> Iterator[MiniBatch]:
        """The batches from the current position to the end of the epoch."""
        order = self._positions.order(self._epoch)
        shares = [self._positions.rank_batch(order, step) for step in range(self._step, len(self))]
        self._batches[:] = [own.seeds for own in shares]
        stock = iter(self._stock)
        for own in shares:
            batch = self._batch(stock, own)
            self._step += 1
            yield batch
            del batch  # or it would live on while the next is made

    def _batch(self, stock: Iterator[Data], own: RankBatch) -> MiniBatch:
        with self.phases("sample"):
            with _seeded(self.plan.seed, self._epoch, self._step, self.plan.rank):
                drawn = next(stock)
            subgraph = subgraph_of_batch(drawn, self._num_hops)
        with self.phases("gather"):
            return mini_batch(self._store, self._features, subgraph, own, self._needs)


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Draws of torch on the CPU are a pure function of `key`, and leave no trace."""
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed[0]))
        yield


def _refuse_repeated(seeds: Int64Array) -> None:
    num_repeated = len(seeds) - len(np.unique(seeds))
    if num_repeated > 0:
        raise UserError(
            f"{num_repeated} of {len(seeds)} seeds are repetitions",
            "Give each seed once, or use sampler.backend=numba.",
        )
