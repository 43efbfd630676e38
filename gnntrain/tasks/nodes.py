"""What tasks share whose examples are nodes of the target type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import Graph, Int64Array
from gnntrain.devices import float_type
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.graph import node_seeds
from gnntrain.tasks.base import ComputedRows, SplitSlice

# Bounds the outputs of a slice of a split: 16 MiB of float32.
_MAX_SLICE_NUMBERS = 1 << 22


class NodeTask:
    """Examples are nodes, an example's output is the model's; see `Task`.

    Args:
        graph: Nodes, splits and labels.
        num_outputs: See `Task.num_outputs`.
    """

    head = None
    seeds = staticmethod(node_seeds)

    def __init__(self, graph: Graph, num_outputs: int) -> None:
        self._graph = graph
        self.num_outputs = num_outputs

    def examples(self, split: str) -> Int64Array:
        """The nodes of a split, int64 `[n]`."""
        return self._graph.split(split)

    def in_words(self, examples: Int64Array) -> str:
        """See `Graph.in_words`."""
        return self._graph.in_words(examples)

    @property
    def targets(self) -> Tensor:
        """See `Task.targets`: the graph's labels."""
        return as_tensor(self._graph.labels)

    def judge(
        self, split: str, computed: Sequence[ComputedRows], context: DistributedContext
    ) -> Iterator[SplitSlice]:
        """See `Task.judge`: each node is judged by the rank that has computed it."""
        seeds = self.examples(split)
        size = max(1, _MAX_SLICE_NUMBERS // self.num_outputs)
        for start in range(0, len(seeds), size):
            nodes = np.asarray(seeds[start : start + size])
            found: list[SplitSlice] = []
            for part in computed:
                is_here = (nodes >= part.nodes.start) & (nodes < part.nodes.stop)
                rows = as_tensor(nodes[is_here] - part.nodes.start)
                of_part = part.outputs[rows.to(part.outputs.device)]
                # Metrics compute in float64; only what lies in host memory is gathered.
                if context.world_size > 1 or float_type(of_part.device) != torch.float64:
                    of_part = of_part.cpu()
                positions = as_tensor(np.flatnonzero(is_here))
                targets = part.targets[rows].to(of_part.device)
                found.append(SplitSlice(positions, of_part, targets))
            if found:
                yield SplitSlice(*map(torch.cat, zip(*found, strict=True)))
            else:
                none = torch.empty(0, dtype=torch.int64)
                yield SplitSlice(none, torch.empty(0, self.num_outputs), self.targets[:0])
