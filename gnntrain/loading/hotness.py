"""Hot nodes: the nodes whose rows batches read most, to be cached on a GPU.

SALIENT++ (Kaler et al., 2023) and GNNLab (Yang et al., 2022) found that sampling some epochs in
advance predicts reads better than degrees do: reads depend on the training nodes and the fan-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.loading.loader import SeedPlan
from gnntrain.sampling.base import Int64Array, SampleKey

# Epochs sampled in advance must differ from training's.
_ADVANCE_STREAM = 0x484F5453

_EDGES_AT_ONCE = 1 << 24


def presampled(
    draw: Callable[[Int64Array, SampleKey], Tensor],
    plan: SeedPlan,
    num_nodes: int,
    num_epochs: int,
) -> Tensor:
    """The number of a rank's batches that would read each node's row.

    Args:
        draw: Samples a batch's nodes, int64, each once, from its seeds and key.
        plan: The rank's seeds.
        num_nodes: Of the graph.
        num_epochs: Epochs to sample in advance.

    Returns:
        int64 `[num_nodes]`, on the device of `draw`'s nodes.
    """
    plan = replace(plan, seed=plan.seed ^ _ADVANCE_STREAM)
    counts: Tensor | None = None
    for epoch in range(num_epochs):
        order = plan.order(epoch)
        for step in range(plan.num_steps):
            nodes = draw(plan.rank_batch(order, step).seeds, SampleKey(plan.seed, epoch, step))
            if counts is None:
                counts = torch.zeros(num_nodes, dtype=torch.int64, device=nodes.device)
            counts.index_add_(0, nodes, torch.ones_like(nodes))
    return torch.zeros(num_nodes, dtype=torch.int64) if counts is None else counts


def out_degrees(store: Graph) -> Tensor:
    """Out-edges of every node, int64 `[num_nodes]`."""
    counts = np.zeros(store.num_nodes, np.int64)
    for start in range(0, store.num_edges, _EDGES_AT_ONCE):
        part = store.indices[start : start + _EDGES_AT_ONCE]
        counts += np.bincount(part, minlength=store.num_nodes)
    return torch.from_numpy(counts)


def hottest(counts: Tensor, num_rows: int) -> Tensor:
    """The `num_rows` nodes with the largest counts, int64, ascending; equal ones by number."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:num_rows].sort().values
